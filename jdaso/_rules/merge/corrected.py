"""Merge ``"corrected"``: the mean of the snapshots, plus all local progress since then."""

from __future__ import annotations

import dataclasses

import jax

from ..._types import PyTree
from .base import Merge, Merged


@dataclasses.dataclass(frozen=True)
class Corrected(Merge):
    """``x' = x + (mean_p s_p - s)``, the update of LOSCAR-SGD (arXiv 2605.20866)."""

    name = "corrected"
    needs_snapshot, needs_anchor = True, False

    def merge(self, params, snapshot, total, anchor, outer, *, nodes, age, living=None) -> Merged:
        """As `Merge.merge`."""
        del anchor, age, living
        mean = jax.tree.map(lambda t: t / nodes, total)
        return Merged(merge_corrected(params, snapshot, mean), mean, outer)


def merge_corrected(params: PyTree, snapshot: PyTree, point: PyTree) -> PyTree:
    """Moves to `point` and keeps all local progress: ``params + (point - snapshot)``."""
    return jax.tree.map(lambda x, s, m: x + (m - s), params, snapshot, point)
