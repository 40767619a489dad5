"""Reductions that leave NaN out, like NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._array import METHODS, Array, as_array, made
from ._elementwise import elementwise, where
from ._layout import axes_of
from ._reduce import REDUCTIONS, Axis, count_nonzero, type_of_means
from ._shape import squeeze


def _known(x: Array) -> Array:
    return elementwise(lambda block: ~jnp.isnan(block), x)


def _sums(name: str, nothing: int) -> Callable[..., Array]:
    def call(x: Any, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
        x = as_array(x)
        kept = where(_known(x), x, nothing)
        return REDUCTIONS[name](kept, axis=axis, dtype=dtype, keepdims=keepdims)

    told = f"`{name}` of the elements that are not NaN; {nothing} if there is none. Moves the same."
    return made(f"nan{name}", told, call)


def _picks(name: str, nothing: float) -> Callable[..., Array]:
    def call(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Array:
        x = as_array(x)
        if x.dtype.kind in "biu":
            return REDUCTIONS[name](x, axis=axis, keepdims=keepdims)
        known = _known(x)
        found = REDUCTIONS[name](where(known, x, nothing), axis=axis, keepdims=keepdims)
        some = REDUCTIONS["any"](known, axis=axis, keepdims=keepdims)
        return where(some, found, np.nan)

    told = f"`{name}` of the elements that are not NaN; NaN if there is none. Moves a second `any`."
    return made(f"nan{name}", told, call)


def _places(name: str, nothing: float) -> Callable[..., Array]:
    def call(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
        x = as_array(x)
        pick = METHODS[name]
        if x.dtype.kind in "biu":
            return pick(x, axis=axis, keepdims=keepdims)
        known = _known(x)
        if not bool(REDUCTIONS["all"](REDUCTIONS["any"](known, axis=axis))):
            raise ValueError(f"nan{name} of NaN alone, in an array of {x.shape}. Leave these out.")
        return pick(where(known, x, nothing), axis=axis, keepdims=keepdims)

    told = f"`{name}` of the elements that are not NaN. Moves a second `any` and a number."
    return made(f"nan{name}", f"{told}\n\n    Raises:\n        ValueError: all are NaN.", call)


nanargmax = _places("argmax", -np.inf)
nanargmin = _places("argmin", np.inf)
nansum = _sums("sum", 0)
nanprod = _sums("prod", 1)
nanmin = _picks("min", np.inf)
nanmax = _picks("max", -np.inf)


def nanmean(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Arithmetic mean of the elements that are not NaN, over axes (None: all); NaN of none.

    Moves a reduction of the sums, and one of the numbers of elements.
    """
    x = as_array(x)
    found, _ = _mean(x, axis, keepdims=keepdims)
    return _typed(found, x)


def nanvar(
    x: Any,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
    ddof: float | None = None,
) -> Array:
    """Variance of the n elements that are not NaN, over axes (None: all).

    The sum of squared distances from their mean, divided by ``n - correction``; NaN unless this is
    positive. Moves three reductions of the result's size.
    """
    left = correction if ddof is None else ddof
    return _typed(_variance(as_array(x), axis, left, keepdims=keepdims), as_array(x))


def nanstd(
    x: Any,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
    ddof: float | None = None,
) -> Array:
    """Standard deviation of the elements that are not NaN, the root of `nanvar`; moves the same."""
    found = _variance(as_array(x), axis, correction if ddof is None else ddof, keepdims=keepdims)
    return _typed(elementwise(jnp.sqrt, found), as_array(x))


def _mean(x: Array, axis: Axis, *, keepdims: bool) -> tuple[Array, Array]:
    """The mean in the type of means, and the number of elements."""
    dtype = type_of_means(x.dtype)
    number = count_nonzero(_known(x), axis=axis, keepdims=keepdims)
    return nansum(x, axis=axis, dtype=dtype, keepdims=keepdims) / number.astype(dtype), number


def _variance(x: Array, axis: Axis, correction: float, *, keepdims: bool) -> Array:
    mean, number = _mean(x, axis, keepdims=True)

    def distance(block: jax.Array, mean: jax.Array) -> jax.Array:
        return jnp.where(jnp.isnan(block), 0, jnp.abs(block - mean) ** 2)

    total = REDUCTIONS["sum"](elementwise(distance, x, mean), axis=axis, keepdims=True)

    def divided(total: jax.Array, number: jax.Array) -> jax.Array:
        left = number - correction
        return jnp.where(left > 0, total / left, jnp.nan).astype(total.dtype)

    found = elementwise(divided, total, number)
    return found if keepdims else squeeze(found, axes_of(axis, x.ndim))


def _typed(found: Array, x: Array) -> Array:
    """The result in the type of the array, if that has NaN."""
    return found.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else found
