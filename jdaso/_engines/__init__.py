"""Engines: ways in which the chunks of an exchange get from node to node and are added.

Rule 1: an engine is one file with the verbs of `base.Reducer`; `make` knows their names.
Rule 2: engines see bytes of a wire and a number of nodes; they know nothing of optimizers, steps or
phases. `channel` is what steps talk to: it hands an exchange over, runs it in a thread, and waits.
"""
