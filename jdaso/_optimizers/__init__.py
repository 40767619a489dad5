"""Transformations for ``optax.chain``: ``init`` and ``update``, and the exact end of a run.

Rule 1: a module here composes the rules (`_rules`) with exchanges (`_exchange`); formulas and waits
live there.
Rule 2: all state that an update needs is in the optimizer's state; a session keeps only machine
resources.
"""
