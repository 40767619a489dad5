"""Derivatives where numbers that all nodes share are combined with numbers of one node."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ._world import World


def varied(x: Any, at: World) -> Any:
    """Returns numbers that all nodes share, for use with a node's own rows.

    Each node computes the derivative through its own rows alone; the derivative of the shared
    numbers is the sum of all. Forward nothing moves, backward one reduction. In a traced program
    this is the transpose of a reduction, which is the identity, and whose transpose is a reduction.
    """
    if at.nodes == 1 or not isinstance(x, Tracer) or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    (same,) = jax.linear_transpose(lambda rows: at.reduce(rows, "sum"), x)(x)
    return same


def beside(block: jax.Array, *used: Any) -> jax.Array:
    """Returns a node's block of a result, whose derivative reaches all numbers `used`.

    JAX leaves out operations without rows, and their derivatives. A node without rows would then
    not take part in the reductions of the other nodes' derivatives, and they would wait for it.
    """
    if not jnp.issubdtype(block.dtype, jnp.inexact):
        return block
    for x in used:
        if isinstance(x, Tracer) and jnp.issubdtype(x.dtype, jnp.inexact):
            none = jnp.sum(x).astype(block.dtype)
            never = jnp.zeros(block.shape, bool)
            block = jax.lax.select(never, jax.lax.broadcast(none, block.shape), block)
    return block
