"""Derivatives where numbers that all nodes share meet numbers of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.core import Tracer

from ._world import World


def varied(x: jax.Array, at: World) -> jax.Array:
    """Returns numbers that all nodes share, for use beside a node's own rows.

    Each node sees the derivative by way of its rows alone; the derivative of the shared numbers is
    the sum of all. Nothing moves forward; backward one reduction.
    """
    return _varied(at, x) if isinstance(x, Tracer) and at.nodes > 1 else x


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _varied(at: World, x: jax.Array) -> jax.Array:
    return x


@_varied.defjvp
def _derivative(at: World, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """The derivative is the same in both directions; transposed, it is a sum over nodes."""

    def backward(_: Any, slope: jax.Array) -> jax.Array:
        return at.reduce(slope, "sum")

    (x,), (change,) = primals, tangents
    return x, jax.custom_derivatives.linear_call(lambda _, t: t, backward, (), change)
