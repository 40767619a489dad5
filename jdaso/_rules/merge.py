"""How the late result of an exchange enters parameters that have moved on since.

All formulas in float32, on the exchanged leaves. P nodes; ``s_p`` the snapshot of node p, ``x``
the node's current parameters, ``a`` the age: steps that passed between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._types import PyTree


class Merged(NamedTuple):
    """What a merge gives."""

    params: PyTree
    anchor: PyTree  # the new common point, the same on all nodes
    outer: PyTree


class Merge(NamedTuple):
    """A merge rule.

    Attributes:
        name: as users write it.
        needs_snapshot: whether the node's own snapshot is kept while the exchange is in flight.
        needs_anchor: whether a float32 point common to all nodes is kept between exchanges.
        outer: the outer optimizer, if the rule has one.
    """

    name: str
    needs_snapshot: bool = False
    needs_anchor: bool = False
    outer: optax.GradientTransformation | None = None

    def kept_share(self, nodes: Any, age: jax.Array) -> jax.Array | float:
        """The share of the node's own parameters that the rule leaves in place."""
        if self.name != "paper":
            return 0.0
        a = age.astype(jnp.float32)
        return 2 * a / (2 * a + nodes)

    def __call__(
        self,
        params: PyTree,
        snapshot: PyTree,
        total: PyTree,
        anchor: PyTree,
        outer: PyTree,
        *,
        nodes: int,
        age: jax.Array,
        living: Any = None,
        outer_update: Callable[..., Any] | None = None,
    ) -> Merged:
        """Merges ``total = sum_p s_p`` into `params`.

        Where only some nodes are `living`, `total` is P times their mean. `outer_update` is the
        outer optimizer's, where the trees are not what it was made for.
        """
        mean = jax.tree.map(lambda t: t / nodes, total)
        if self.name == "paper":
            if living is not None:
                total, nodes = jax.tree.map(lambda t: living / nodes * t, total), living
            return Merged(merge_paper(params, total, nodes=nodes, age=age), mean, outer)
        if self.name == "corrected":
            return Merged(merge_corrected(params, snapshot, mean), mean, outer)
        assert self.outer is not None
        slope = jax.tree.map(jnp.subtract, anchor, mean)
        updates, outer = (outer_update or self.outer.update)(slope, outer, anchor)
        anchor = jax.tree.map(jnp.add, anchor, updates)
        return Merged(merge_corrected(params, snapshot, anchor), anchor, outer)


def merge_paper(params: PyTree, total: PyTree, *, nodes: Any, age: Any) -> PyTree:
    """Merges a late sum as the paper does.

    Returns ``(2a * params + total) / (2a + P)``.

    Args:
        params: the current parameters, float32.
        total: the sum of all nodes' snapshots, float32, like `params`.
        nodes: P.
        age: a, steps since the snapshot, at least 1.

    Reference: arXiv 2104.05588, equation 1 of section III-B (there a is S, the setting).
    """
    a = jnp.asarray(age).astype(jnp.float32)
    return jax.tree.map(lambda x, t: (2 * a * x + t) / (2 * a + nodes), params, total)


def merge_corrected(params: PyTree, snapshot: PyTree, point: PyTree) -> PyTree:
    """Moves to `point` and keeps all local progress: ``params + (point - snapshot)``.

    With ``point = mean_p s_p`` this is the update of LOSCAR-SGD (arXiv 2605.20866).
    """
    return jax.tree.map(lambda x, s, m: x + (m - s), params, snapshot, point)


def outer(transformation: optax.GradientTransformation) -> Merge:
    """A merge rule that takes an optimizer step between the nodes, as DiLoCo does.

    All nodes hold a common anchor ``t``, the parameters before the first cycling update. The mean
    of the snapshots gives a pseudo-gradient that is the same on all nodes, ``g = t - mean_p s_p``;
    the outer optimizer steps, ``t' = t + update(g)``; each node follows and keeps what it did
    meanwhile, ``x' = x + (t' - s)``. With ``optax.sgd(1.0)`` this is ``"corrected"``.

    Args:
        transformation: the outer optimizer. It sees float32 leaves and costs its own state; the
            rule costs two copies of the parameters (anchor, and snapshot while in flight).

    Example:
        >>> import jdaso, optax
        >>> nesterov = optax.sgd(0.7, momentum=0.9, nesterov=True)
        >>> rule = jdaso.outer(nesterov)

    Reference: DiLoCo, arXiv 2311.08105, algorithm 1; late as in arXiv 2501.18512. (A slope of
    ``s_p - mean_p s_p`` would add up to zero over the nodes, so that the momentum of the common
    motion, which DiLoCo lives from, would be lost.)
    """
    return Merge("outer", needs_snapshot=True, needs_anchor=True, outer=transformation)


def merge_of(rule: str | Merge) -> Merge:
    """The merge rule of that name."""
    if isinstance(rule, Merge):
        return rule
    if rule == "paper":
        return Merge("paper")
    if rule == "corrected":
        return Merge("corrected", needs_snapshot=True)
    raise ValueError(f'merge must be "corrected", "paper" or jdaso.outer(optimizer), got {rule!r}.')
