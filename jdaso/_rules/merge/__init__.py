"""Merge rules: how the late result of an exchange enters parameters that have moved on since.

One class a rule, in a file of its own, with the verbs of `base.Merge`. All formulas in float32, on
the exchanged leaves. P nodes; ``s_p`` is the snapshot of node p, ``x`` the node's current
parameters, ``a`` the age: the steps between the two.
"""

from .base import Merge as Merge
from .base import Merged as Merged
from .corrected import Corrected
from .outer import Outer as Outer
from .outer import outer as outer
from .paper import Paper

RULES: dict[str, Merge] = {rule.name: rule for rule in (Corrected(), Paper())}


def merge_of(rule: str | Merge) -> Merge:
    """The merge rule of that name; a rule itself is taken as it is.

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
