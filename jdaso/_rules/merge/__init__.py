"""Merge rules: how the late result of an exchange enters parameters that have since moved on.

One class per rule, each in its own file, with the verbs of `base.Merge`. All formulas are in
float32, on the exchanged leaves. P nodes; ``s_p`` is the snapshot of node p, ``x`` the node's
current parameters, ``a`` the age: the steps between the two.

May live here: formulas. May not: decisions on when to merge (`decide`), exchanges, and MPI.
"""

from .base import Merge as Merge
from .corrected import Corrected
from .outer import Outer as Outer
from .outer import outer as outer
from .paper import Paper

RULES: dict[str, Merge] = {rule.name: rule for rule in (Corrected(), Paper())}


def merge_of(rule: str | Merge) -> Merge:
    """The merge rule with that name; an instance of `Merge` is returned unchanged.

    Raises:
        ValueError: no rule has this name.
    """
    if isinstance(rule, Merge):
        return rule
    if rule not in RULES:
        raise ValueError(
            f'merge must be "corrected", "paper" or jdaso.outer(optimizer), got {rule!r}.'
        )
    return RULES[rule]
