"""The range of numbers, and the skewness and kurtosis of their distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ._array import Array, as_array
from ._elementwise import elementwise
from ._layout import axes_of
from ._moments import moments
from ._reduce import REDUCTIONS, Axis, left, type_of_means
from ._shape import squeeze


def ptp(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The largest element less the smallest, over axes (None: all). Moves both reductions."""
    ends = [REDUCTIONS[name](x, axis=axis, keepdims=keepdims) for name in ("max", "min")]
    return ends[0] - ends[1]


def skew(x: Any, axis: Axis = None, *, bias: bool = True, keepdims: bool = False) -> Array:
    """The skewness ``m3 / m2^1.5`` over axes (None: all); m is the mean of powers about the mean.

    Args:
        x: the array.
        axis: the axes.
        bias: False: for n numbers drawn from a distribution, times sqrt(n (n - 1)) / (n - 2).
        keepdims: whether the axes stay, with length 1.

    Moves two reductions of the result, one of them of two numbers for each. NaN of equal numbers.

    Reference: Joanes and Gill (1998), The Statistician 47.
    """

    def ratio(second: jax.Array, third: jax.Array, number: int) -> jax.Array:
        found = third / second**1.5
        if bias or number < 3:
            return found
        return found * (number * (number - 1)) ** 0.5 / (number - 2)

    return _ratio(x, axis, 3, ratio, keepdims=keepdims)


def kurtosis(
    x: Any, axis: Axis = None, *, fisher: bool = True, bias: bool = True, keepdims: bool = False
) -> Array:
    """The kurtosis ``m4 / m2^2 - 3`` over axes (None: all); m is the mean of powers about the mean.

    Args:
        x: the array.
        axis: the axes.
        fisher: False: without the -3, so that a normal distribution has 3.
        bias: False: for n numbers drawn from a distribution, as in `scipy.stats.kurtosis`.
        keepdims: whether the axes stay, with length 1.

    Moves two reductions of the result, one of them of two numbers for each. NaN of equal numbers.

    Reference: Joanes and Gill (1998), The Statistician 47.
    """

    def ratio(second: jax.Array, fourth: jax.Array, n: int) -> jax.Array:
        excess = fourth / second**2 - 3
        if not bias and n > 3:
            excess = ((n + 1) * excess + 6) * (n - 1) / ((n - 2) * (n - 3))
        return excess if fisher else excess + 3

    return _ratio(x, axis, 4, ratio, keepdims=keepdims)


def _ratio(
    x: Any,
    axis: Axis,
    power: int,
    ratio: Callable[[jax.Array, jax.Array, int], jax.Array],
    *,
    keepdims: bool,
) -> Array:
    """A ratio of the mean square distance from the mean, and of a mean higher power."""
    x = as_array(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"skew and kurtosis take real numbers, got {x.dtype}. Take real or imag.")
    x = x.astype(type_of_means(x.dtype))
    axes = axes_of(axis, x.ndim)
    middle, spread, number = moments(x, axes)
    layout = left(x, axes, keepdims=True)
    middle, squares = (Array(one, layout, x.world) for one in (middle, spread))

    def raised(block: jax.Array, middle: jax.Array) -> jax.Array:
        return (block - middle) ** power

    sums = REDUCTIONS["sum"](elementwise(raised, x, middle), axis=axes, keepdims=True)

    def divided(middle: jax.Array, squares: jax.Array, sums: jax.Array) -> jax.Array:
        second = squares / number
        equal = second <= (jnp.finfo(second.dtype).eps * middle) ** 2
        return jnp.where(equal, jnp.nan, ratio(second, sums / number, number))

    found = elementwise(divided, middle, squares, sums)
    return found if keepdims else squeeze(found, axes)
