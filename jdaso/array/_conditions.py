"""Elements chosen, replaced and found by conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ._array import Array, as_array, of_one_world
from ._elementwise import elementwise, trunc, where
from ._layout import ArrayLayout
from ._move import resplit
from ._reduce import index_type
from ._shape import ravel, stack
from ._take import nonzero
from ._varied import beside, varied


def argwhere(x: Any) -> Array:
    """The places of the elements that are not 0, one a row, ``[n, ndim]``. Moves as `nonzero`."""
    x = as_array(x)
    if x.ndim:
        return stack(nonzero(x), axis=1)
    found = int(bool(x))
    layout = ArrayLayout((found, 0))
    return Array(jnp.zeros(layout.shape, index_type(1)), layout, x.world)


def flatnonzero(x: Any) -> Array:
    """The places of the elements that are not 0 in the flat array. Moves as `ravel`, `nonzero`."""
    return nonzero(ravel(x))[0]


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Array:
    """Elements of the first choice whose condition is true, else the default.

    Moves as `where`: nothing if all have one layout.

    Raises:
        ValueError: there are not as many choices as conditions, or none.
    """
    if len(condlist) != len(choicelist) or len(condlist) == 0:
        raise ValueError(
            f"select takes as many choices as conditions, got {len(condlist)} conditions and "
            f"{len(choicelist)} choices."
        )
    found = default
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        found = where(condition, choice, found)
    return as_array(found)


def nan_to_num(
    x: Any,
    copy: bool = True,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Array:
    """Elements, with a number for NaN and for each infinity. Nothing moves.

    Args:
        x: the array.
        copy: makes no difference, since JAX's arrays are immutable.
        nan: the number for NaN.
        posinf: the number for infinity; None: the largest of the type.
        neginf: the number for -infinity; None: the smallest of the type.
    """

    def replaced(block: jax.Array) -> jax.Array:
        return jnp.nan_to_num(block, nan=nan, posinf=posinf, neginf=neginf)

    return elementwise(replaced, as_array(x))


def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Array:
    """Values of a function that is linear between known points, in the layout of x.

    Args:
        x: the places.
        xp: the known places ``[n]``, ascending.
        fp: the values there, ``[n]``.
        left: the value before the first place; None: the first one's.
        right: the value behind the last place; None: the last one's.
        period: of the function; None: it has none.

    Moves the known points to all nodes if they are split.

    Raises:
        ValueError: the known points are not two lines of one length, or the period is 0.
    """
    x, *known = of_one_world(x, xp, fp)
    if known[0].shape != known[1].shape or known[0].ndim != 1:
        shapes = [one.shape for one in known]
        raise ValueError(f"interp takes two lines of known points of one length, got {shapes}.")
    if not known[0].size:
        raise ValueError("interp needs at least one known point, got none.")
    if period == 0:
        raise ValueError("period must not be 0. Leave it out for a function without one.")
    points = [resplit(one, None).block for one in known]
    if x.split is not None:
        points = [varied(one, x.world) for one in points]
    # JAX takes places that are closer than 1e-14 for equal: if all are small, they are multiplied.
    kind = jnp.result_type(x.dtype, points[0].dtype, 0.0)
    _, power = jnp.frexp(jnp.max(jnp.abs(points[0])).astype(kind))
    larger = jnp.ldexp(jnp.ones((), kind), -jnp.minimum(power, 0))
    period = None if period is None else period * larger
    at, known = x.block * larger, points[0] * larger
    block = jnp.interp(at, known, points[1], left, right, period)
    return Array(block if block.size else beside(block, x.block, *points), x.layout, x.world)


def modf(x: Any) -> tuple[Array, Array]:
    """The fractions and the whole parts of numbers, both with their signs. Moves nothing."""
    x = as_array(x)
    x = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)
    whole = trunc(x)
    return elementwise(_fraction, x, whole), whole


def _fraction(x: jax.Array, whole: jax.Array) -> jax.Array:
    return jnp.copysign(jnp.where(jnp.isinf(x), 0, x - whole), x)
