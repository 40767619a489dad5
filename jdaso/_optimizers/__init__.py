"""Transformations for ``optax.chain``: ``init`` and ``update``, and the exact end of a run.

Rule 1: a module here composes the rules (`_rules`) with exchanges (`_exchange`); formulas and waits
live there.
Rule 2: all state that an update needs is in the optimizer's state; a session keeps only machine
resources.

`daso` is the public function; `stages` lists what an update does, and `update` is the record that
flows through it. `cycling` is the stage that exchanges: `late` merges and starts one fragment,
`blocking` takes the means that a step waits for. Both use the `exchanges` of the parameters, made
once per update, which follow from the settings in `between`.
"""
