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
    """What an exchange brought.

    Attributes:
        total: sum over nodes of what they sent, the same on all nodes: leaves of a late exchange,
            chunks of a mean.
        residual: what the wire took from the part that this node summed. Of a late exchange its row
            of each chunk, and the node's number; see `add_residual`. Of a mean chunks, with zeros
            elsewhere. Empty for the float32 wire.
        heads: headers of all nodes, int32 ``[nodes, HEADER]``.
    """

    total: Chunks | Leaves
    residual: Any
    heads: jax.Array

    @property
    def finite(self) -> jax.Array:
        """Whether the numbers of all nodes are finite."""
        return ~jnp.any(self.heads[:, BAD_LEAF] != 0)

    def scaled(self, total: PyTree) -> PyTree:
        """What nodes of these weights sent, as if all had had the weight 1."""
        factor = jnp.float32(len(self.heads)) / weight_of_all(self.heads)
        return jax.tree.map(lambda x: factor * x, total)

    def owed(self, debt: PyTree) -> PyTree:
        """What rounding took from what nodes of these weights sent, as `scaled` does the rest.

        The next exchange pays it to a mean over those that live.
        """
        factor = self.living / weight_of_all(self.heads)
        return jax.tree.map(lambda x: factor * x, debt)

    @property
    def living(self) -> jax.Array:
        """How many nodes have not died, float32."""
        return living(self.heads)

    @property
    def apart(self) -> jax.Array:
        """Whether the nodes sent different checksums, but for those that are left out."""
        return apart(self.heads)


Reduced = tuple[Chunks, Chunks, jax.Array]
"""Encoded sums ``[nodes, w]`` of each chunk, what encoding took from this node's row, headers."""
