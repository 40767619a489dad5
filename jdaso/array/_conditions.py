"""Elements chosen, replaced and found by conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ._array import Array, as_array
from ._elementwise import elementwise, where
from ._layout import ArrayLayout
from ._move import resplit
from ._reduce import index_type
from ._shape import ravel, stack
from ._take import nonzero


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
    if len(condlist) != len(choicelist) or not condlist:
        raise ValueError(
            f"select takes as many choices as conditions, got {len(condlist)} conditions and "
            f"{len(choicelist)} choices."
        )
    found = default
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        found = where(condition, choice, found)
    return as_array(found)


def nan_to_num(
    x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Array:
    """Elements, with a number for NaN and for each infinity. Nothing moves.

    Args:
        x: the array.
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
        ValueError: the known points are not two lines of one length.
    """
    known = [as_array(one) for one in (xp, fp)]
    if known[0].shape != known[1].shape or known[0].ndim != 1:
        shapes = [one.shape for one in known]
        raise ValueError(f"interp takes two lines of known points of one length, got {shapes}.")
    places, values = (resplit(one, None).block for one in known)

    def between(block: jax.Array) -> jax.Array:
        return jnp.interp(block, places, values, left, right, period)

    return elementwise(between, as_array(x))


def modf(x: Any) -> tuple[Array, Array]:
    """The fractions and the whole parts of numbers, both with their signs. Moves nothing."""
    x = as_array(x)
    fraction, whole = (elementwise(_part(k), x) for k in (0, 1))
    return fraction, whole


def _part(k: int) -> Callable[[jax.Array], jax.Array]:
    return lambda block: jnp.modf(block)[k]
