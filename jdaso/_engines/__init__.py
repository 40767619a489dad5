"""Engines: ways to move the chunks of an exchange between nodes and to sum them.

Rule 1: an engine is one file with the verbs of `base.Reducer`; `make` maps names to engines.
Rule 2: engines see bytes of a wire and a number of nodes, and do not depend on optimizers, steps or
phases. Steps use `channel`, which enqueues an exchange, runs it in a thread, and waits.
"""
