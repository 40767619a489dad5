"""The host's side of exchanges: engines that move chunks, and the numbers that they move.

Rule 1: an engine is one file with the methods of `base.Reducer`; `make` maps names to engines. An
engine sees bytes of a wire and a number of nodes, and no optimizers, steps or phases.
Rule 2: `channel` starts an exchange and waits for it; `flights` are those that it keeps; `worker`
is the thread in which one runs. Its numbers are those of `versions` (late exchanges) or of `sums`
(a step waits): compiled steps call these.
Rule 3: nothing that a step calls waits for JAX; `programs` run in the channel's threads.
"""
