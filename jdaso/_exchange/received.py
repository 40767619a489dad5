"""The result of an exchange in a compiled step."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from .._payload.header import living, weight_of_all
from .._payload.words import BAD_LEAF
from .._types import Chunks, Leaves, PyTree
from .replicated import apart


@dataclasses.dataclass(frozen=True)
class Received:
    """The sums and headers that an exchange returned.

    Attributes:
        total: sum over nodes, the same on all nodes: leaves of a late exchange, chunks of a mean.
        residual: rounding error of the part that this node summed; empty for the float32 wire.
            Late exchange: this node's row of each chunk, and the node's number; see `add_residual`.
            Mean: chunks, 0 in the other nodes' parts.
        heads: headers of all nodes, int32 ``[nodes, HEADER]``.
    """

    total: Chunks | Leaves
    residual: Any
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

        Scaled by the living nodes: the next exchange adds it to a mean over these.
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
