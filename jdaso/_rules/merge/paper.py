"""Merge ``"paper"``: a weighted mean of the late sum and the current parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

from .base import Merge


@dataclasses.dataclass(frozen=True)
class Paper(Merge):
    """``x' = (2a x + sum_p s_p) / (2a + P)``, that is ``x + P / (2a + P) (mean_p s_p - x)``.

    In the second form a parameter that equals the mean stays as it is.

    Reference: arXiv 2104.05588, equation 1 of section III-B (there a is S, the setting).
    """

    name = "paper"
    keeps_progress, needs_anchor = False, False

    def weight(self, nodes: Any, age: Any) -> Any:
        """``P / (2a + P)``."""
        return nodes / (2 * age + nodes)
