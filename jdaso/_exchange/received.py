"""The result of an exchange in a compiled step."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from .._jax.types import Chunks, Leaves, PyTree
from .._payload.header import living, weight_of_all
from .._payload.words import BAD_LEAF
from .replicated import apart


@dataclasses.dataclass(frozen=True)
class Received:
    """The sums and headers that an exchange returned.

    Attributes:
        total: sum over nodes, by leaf, the same on all nodes.
        lost: the wire's rounding error on this node, by leaf: of the numbers sent (not of a late
            exchange, which keeps its own) and of the part of the sum that this node formed.
        heads: headers of all nodes, int32 ``[nodes, HEADER]``.
    """

    total: Leaves
    lost: Leaves
    heads: jax.Array

    @property
    def finite(self) -> jax.Array:
        """True if the numbers of all nodes are finite."""
        return ~jnp.any(self.heads[:, BAD_LEAF] != 0)

    def scaled(self, total: PyTree) -> PyTree:
        """`total` rescaled as if all nodes had sent with weight 1."""
        factor = jnp.float32(len(self.heads)) / weight_of_all(self.heads)
        return jax.tree.map(lambda x: factor * x, total)

    def owed(self, debt: PyTree) -> PyTree:
        """`debt` (rounding error) rescaled for the error feedback, as `scaled` does for totals.

        Scaled by the living nodes: the next exchange adds the debt to a mean over these.
        """
        factor = self.living / weight_of_all(self.heads)
        return jax.tree.map(lambda x: factor * x, debt)

    @property
    def living(self) -> jax.Array:
        """The number of nodes that have not failed, float32."""
        return living(self.heads)

    @property
    def apart(self) -> jax.Array:
        """True if the nodes' checksums differ; those left out do not count."""
        return apart(self.heads)


Reduced = tuple[Chunks, Chunks, jax.Array]
"""Encoded sums ``[nodes, w]`` of each chunk; rounding error of this node's row; headers."""
