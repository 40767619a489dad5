"""Derivatives where numbers that all nodes share meet numbers of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ._world import World


def varied(x: Any, at: World) -> Any:
    """Returns numbers that all nodes share, for use beside a node's own rows.

    Each node sees the derivative by way of its rows alone; the derivative of the shared numbers is
    the sum of all. Nothing moves forward; backward one reduction. In a program that is traced this
    is the transpose of a reduction, which is the identity, and whose transpose is a reduction.
    """
    if at.nodes == 1 or not isinstance(x, Tracer) or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    (same,) = jax.linear_transpose(lambda rows: at.reduce(rows, "sum"), x)(x)
    return same
