"""Payload of an exchange: a tree of arrays as leaves, as chunks, as bytes, and back.

Rule 1: what a number is turned into on its way to another node is decided here, on the device and
on the host by the same formulas, so that both give the same bits.
Rule 2: no module here sends, waits, or knows how many exchanges are in flight.

`layout` says which leaf lies where in chunks; `trees` and `chunks` convert; `words` and `header`
are what travels beside the numbers; `checksums` are of what must be replicated; `wire` holds one
format a file; `explicit` keeps shardings of meshes whose axes are Explicit.
"""
