"""Merge ``"corrected"``: the mean of the snapshots, plus all local progress since then."""

from __future__ import annotations

import dataclasses

from .base import Merge


@dataclasses.dataclass(frozen=True)
class Corrected(Merge):
    """``x' = x + (mean_p s_p - s)``, the update of LOSCAR-SGD (arXiv 2605.20866)."""

    name = "corrected"
    keeps_progress, needs_anchor = True, False
