"""Payload of an exchange: a tree of arrays as leaves, as chunks, as bytes, and back.

Rule 1: the form in which a number travels to another node is decided here, by the same formulas on
the device and on the host, so that both give the same bits.
Rule 2: no module here sends, waits, or depends on how many exchanges are in flight.

`layout` gives the place of each leaf in the chunks; `fragments` divides leaves into parts that are
exchanged in turn; `trees` and `chunks` convert; `words` and `header` are the words that travel with
the numbers; `checksums` covers replicated leaves; `wire` has one file per format; `placement` and
`shards` handle leaves that are divided over a node's devices, `whole` the same leaves in one piece;
`explicit` keeps shardings of meshes whose axes are Explicit.
"""
