"""Merge ``"paper"``: a weighted mean of the late sum and the current parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ..._types import PyTree
from .base import Merge, Merged


@dataclasses.dataclass(frozen=True)
class Paper(Merge):
    """``x' = (2a x + sum_p s_p) / (2a + P)``.

    Reference: arXiv 2104.05588, equation 1 of section III-B (there a is S, the setting).
    """

    name = "paper"
    needs_snapshot = needs_anchor = False

    def merge(self, params, snapshot, total, anchor, outer, *, nodes, age, living=None) -> Merged:
        """As `Merge.merge`."""
        del snapshot, anchor
        mean = jax.tree.map(lambda t: t / nodes, total)
        if living is not None:
            total, nodes = jax.tree.map(lambda t: living / nodes * t, total), living
        return Merged(merge_paper(params, total, nodes=nodes, age=age), mean, outer)

    def kept_share(self, nodes: Any, age: jax.Array) -> jax.Array:
        """``2a / (2a + P)``."""
        own, whole = _weights(nodes, age)
        return own / whole


def merge_paper(params: PyTree, total: PyTree, *, nodes: Any, age: Any) -> PyTree:
    """Returns ``(2a * params + total) / (2a + P)``, float32.

    Args:
        params: the current parameters, float32.
        total: the sum of all nodes' snapshots, float32, like `params`.
        nodes: P.
        age: a, steps since the snapshot, at least 1.
    """
    own, whole = _weights(nodes, age)
    return jax.tree.map(lambda x, t: (own * x + t) / whole, params, total)


def _weights(nodes: Any, age: Any) -> tuple[jax.Array, jax.Array]:
    """The weight of the node's own parameters, 2a, and the total weight, 2a + P."""
    own = 2 * jnp.asarray(age).astype(jnp.float32)
    return own, own + nodes
