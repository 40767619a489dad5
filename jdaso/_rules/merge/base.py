"""The verbs of a merge rule."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import jax

from ..._types import PyTree


class Merged(NamedTuple):
    """The result of a merge.

    Attributes:
        params: the node's new parameters.
        anchor: the new common point, the same on all nodes.
        outer: the rule's own state, the same on all nodes.
    """

    params: PyTree
    anchor: PyTree
    outer: PyTree


class Merge(abc.ABC):
    """A merge rule. Nodes compare its name only; give all nodes the same settings.

    Attributes:
        name: the name that users write.
        needs_snapshot: whether the node's own snapshot is kept while the exchange is in flight.
        needs_anchor: whether a float32 point common to all nodes is kept between exchanges.
    """

    name: str
    needs_snapshot: bool
    needs_anchor: bool

    @abc.abstractmethod
    def merge(
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
    ) -> Merged:
        """Merges ``total = sum_p s_p`` into `params`.

        Args:
            params: x, float32, like all trees here.
            snapshot: the node's own s; empty where the rule needs none.
            total: the sum of all nodes' snapshots.
            anchor: the common point; empty where the rule needs none.
            outer: the rule's own state.
            nodes: P.
            age: a, at least 1, int32.
            living: the number of nodes whose snapshots count, float32; `total` is then P times
                their mean. None if all count.
        """

    def init(self, params: PyTree) -> PyTree:
        """The rule's own state; empty by default."""
        del params
        return ()

    def kept_share(self, nodes: Any, age: jax.Array) -> jax.Array | float:
        """The share of the node's own parameters that the rule leaves in place."""
        del nodes, age
        return 0.0
