"""The verbs of a merge rule."""

from __future__ import annotations

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._jax.types import PyTree

_TRIAL_SCALES = (1e-6, 1.0, 1e6)
"""Scales of the numbers in a trial: a threshold on a norm lies between two of them."""


class Merge(abc.ABC):
    """A merge rule. Nodes compare only the rule's name; give all nodes the same settings.

    The result of an exchange gives a target t, the same on all nodes, to which the node moves::

        keeps_progress:  x <- x + (t - s)
        else:            x <- x + w (t - x)

    with the snapshot s and the weight w. The target is computed on the host while the step runs.

    Attributes:
        name: the name that users write.
        keeps_progress: whether the node keeps all its progress since its snapshot.
        needs_anchor: whether the target needs the previous one, kept between exchanges in float32
            (the first is the parameters before the first cycling update).
    """

    name: str
    keeps_progress: bool
    needs_anchor: bool

    @property
    def follows_mean(self) -> bool:
        """True if nodes move to the mean of all snapshots, and keep their progress since."""
        return self.keeps_progress and type(self).target is Merge.target

    def init(self, params: PyTree) -> PyTree:
        """The rule's own state, the same on all nodes; empty by default."""
        del params
        return ()

    def target(self, mean: PyTree, anchor: PyTree, outer: PyTree) -> tuple[PyTree, PyTree]:
        """The target, and the rule's new state; by default the mean.

        Args:
            mean: mean of all nodes' snapshots, float32, like all trees here.
            anchor: the target before this one; empty where the rule needs none.
            outer: the rule's own state.
        """
        del anchor
        return mean, outer

    def acts_by_element(self) -> bool:
        """Returns whether trial targets depend on each number of the mean separately.

        A node of several ranks needs that: each rank computes the target of its own parts alone.
        """
        numbers = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)

        def moves(begin: Any, means: Any) -> Any:
            anchor: PyTree = (jnp.asarray(begin),)
            outer = self.init(anchor)
            for mean in means:
                anchor, outer = self.target((jnp.asarray(mean),), anchor, outer)
            return np.asarray(anchor[0]) - begin

        def is_alike(scale: float, share: float) -> bool:
            begin, means = share * scale * numbers[0], scale * numbers[1:]
            whole = moves(begin, means)
            parts = [moves(begin[x], means[:, x]) for x in (slice(3), slice(3, None))]
            far = abs(np.concatenate(parts) - whole).max()
            return bool(far <= 1e-2 * abs(whole).max() + 1e-6 * abs(begin).max())

        try:
            with jax.ensure_compile_time_eval():
                return all(is_alike(x, share) for x in _TRIAL_SCALES for share in (0, 1))
        except Exception:  # the rule needs leaves of certain names
            return False

    def weight(self, nodes: Any, age: Any) -> Any:
        """w, float32, for a rule that does not keep all progress.

        Args:
            nodes: the number of nodes whose snapshots count, float32.
            age: a, at least 1, float32.
        """
        del nodes, age
        return 1.0

    def kept_share(self, nodes: Any, age: Any) -> Any:
        """The share of the node's own parameters that a merge leaves in place."""
        return 0.0 if self.keeps_progress else 1 - self.weight(nodes, age)

    def merge(self, params: PyTree, change: PyTree, nodes: Any, age: Any) -> PyTree:
        """The node's new parameters.

        Args:
            params: x, float32.
            change: ``t - s`` if the rule keeps all progress, else t.
            nodes: see `weight`.
            age: see `weight`.
        """
        if self.keeps_progress:
            return jax.tree.map(lambda x, y: x + y, params, change)
        weight = self.weight(nodes, age)
        return jax.tree.map(lambda x, y: x + weight * (y - x), params, change)
