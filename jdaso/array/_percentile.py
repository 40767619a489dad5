"""Percentiles, by all methods of NumPy (Hyndman and Fan 1996, The American Statistician 50)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array, method
from ._layout import ArrayLayout, Axes, axes_of, axis_of
from ._move import resplit
from ._reduce import type_of_means
from ._shape import expand_dims, moveaxis, ravel, reshape
from ._sort import sort

Place = tuple[np.ndarray, np.ndarray]
"""Places in the sorted elements, and the share of the next element."""


def _between(alpha: float, beta: float, n: int, share: np.ndarray) -> Place:
    """Interpolates linearly between neighbours; `alpha` and `beta` set the plotting positions."""
    place = n * share + alpha + share * (1 - alpha - beta) - 1
    if alpha == beta == 1:  # the same, exact where the share is that of an element
        place = (n - 1) * share
    low = np.floor(place)
    return low, place - low


def _picked(pick: Callable[[np.ndarray], np.ndarray], n: int, share: np.ndarray) -> Place:
    place = pick((n - 1) * share)
    return place, np.zeros_like(place)


def _midpoint(n: int, share: np.ndarray) -> Place:
    place = (n - 1) * share
    low = np.floor(place)
    return low, np.where(place == low, 0.0, 0.5)


def _step(at_step: float, n: int, share: np.ndarray) -> Place:
    """The next element; at a step of the distribution, both neighbours have a share."""
    low, rest = _between(0, 1, n, share)
    return low, np.where(rest == 0, at_step, 1.0)


def _closest(n: int, share: np.ndarray) -> Place:
    """The closest element; halfway between two, the one with the even number, counted from 1."""
    place = n * share - 1.5
    low = np.floor(place)
    return low, np.where((place == low) & (low % 2 == 1), 0.0, 1.0)


METHODS_OF_NUMPY: dict[str, Callable[[int, np.ndarray], Place]] = {
    "linear": partial(_between, 1, 1),
    "hazen": partial(_between, 0.5, 0.5),
    "weibull": partial(_between, 0, 0),
    "median_unbiased": partial(_between, 1 / 3, 1 / 3),
    "normal_unbiased": partial(_between, 3 / 8, 3 / 8),
    "interpolated_inverted_cdf": partial(_between, 0, 1),
    "lower": partial(_picked, np.floor),
    "higher": partial(_picked, np.ceil),
    "nearest": partial(_picked, np.rint),
    "midpoint": _midpoint,
    "inverted_cdf": partial(_step, 0.0),
    "averaged_inverted_cdf": partial(_step, 0.5),
    "closest_observation": _closest,
}
"""The place of a share of n sorted elements, by the name of the method."""


@method("percentile")
def percentile(
    x: Any, q: Any, axis: Axes | None = None, *, method: str = "linear", keepdims: bool = False
) -> Array:
    """Percentiles along an axis, like `numpy.percentile`; NaN if an element is NaN.

    Args:
        x: the array.
        q: percentages, 0 to 100: a number or an array of them, whose axes come first in the result.
        axis: the axis, or several; None: of all elements.
        method: one of NumPy's, for places between two elements.
        keepdims: whether the axis stays, with length 1.

    Moves what `sort` moves, and two rows for each percentile.

    Raises:
        ValueError: there are no elements, a percentage is out of range, or there is no such method.
    """
    shares = np.asarray(np.asarray(q, float) / 100)
    return _quantile(x, shares, axis, method, keepdims=keepdims)


def _quantile(
    x: Any, wanted: np.ndarray, axis: Axes | None, method: str, *, keepdims: bool
) -> Array:
    """Quantiles of shares; see `percentile`."""
    x = as_array(x)
    if isinstance(axis, Sequence):
        return _of_axes(x, wanted, axes_of(axis, x.ndim), method, keepdims=keepdims)
    if method not in METHODS_OF_NUMPY:
        raise ValueError(f"method must be one of {', '.join(METHODS_OF_NUMPY)}, got {method!r}.")
    number = x.size if axis is None else x.shape[axis_of(axis, x.ndim)]
    if not number or not ((wanted >= 0) & (wanted <= 1)).all():
        raise ValueError(
            "percentile needs elements and percents of 0 to 100 (quantile: shares of 0 to 1), got "
            f"shares {wanted} of {number} elements."
        )
    along = 0 if axis is None else axis_of(axis, x.ndim)
    line = moveaxis(sort(ravel(x) if axis is None else x, axis=along), along, 0)
    place = METHODS_OF_NUMPY[method](line.shape[0], wanted.reshape(-1))
    found = _at(line, place, wanted.shape)
    if not keepdims:
        return found
    if axis is None:
        return reshape(found, (*wanted.shape, *[1] * x.ndim))
    return expand_dims(found, axis=along + wanted.ndim)


def _of_axes(
    x: Array, wanted: np.ndarray, axes: tuple[int, ...], method: str, *, keepdims: bool
) -> Array:
    """Quantiles along several axes, which are joined to one first."""
    last = moveaxis(x, axes, tuple(range(x.ndim - len(axes), x.ndim)))
    kept = last.shape[: x.ndim - len(axes)]
    joined = reshape(last, (*kept, math.prod(last.shape[len(kept) :])))
    found = _quantile(joined, wanted, len(kept), method, keepdims=False)
    if not keepdims:
        return found
    shape = tuple(1 if k in axes else n for k, n in enumerate(x.shape))
    return reshape(found, (*wanted.shape, *shape))


def _at(line: Array, place: Place, first: tuple[int, ...]) -> Array:
    """Elements of the first, sorted axis at places between them, which have a shape too."""
    last, (low, share) = line.shape[0] - 1, place
    share = np.where((low < 0) | (low >= last), 0.0, share)
    low = np.clip(low, 0, last).astype(int)
    places = np.concatenate([low, np.minimum(low + 1, last), [last]])
    rows = line[places]
    rows = resplit(rows, None) if rows.split == 0 else rows
    found = _mixed(rows.block.astype(type_of_means(line.dtype)), share)
    found = found.astype(line.dtype) if jnp.issubdtype(line.dtype, jnp.floating) else found
    shape = (*first, *line.shape[1:])
    split = None if rows.split is None else rows.split - 1 + len(first)
    layout = ArrayLayout(shape, split, rows.counts)
    return Array(found.reshape(layout.block_shape(line.world.node)), layout, line.world)


def _mixed(rows: jax.Array, share: np.ndarray) -> jax.Array:
    """Rows ``[low, high, last]``, mixed by shares ``[q]``; infinite ones have no difference."""
    low, high = rows[:-1].reshape(2, len(share), *rows.shape[1:])
    part = jnp.asarray(share.reshape(-1, *[1] * (rows.ndim - 1)), rows.dtype)
    apart = high - low
    found = low + apart * part
    overflows = jnp.isinf(apart) & jnp.isfinite(low) & jnp.isfinite(high)
    found = jnp.where(overflows, low * (1 - part) + high * part, found)
    found = jnp.where(part == 1, high, found)
    found = jnp.where((part == 0) | (low == high), low, found)
    return jnp.where(jnp.isnan(rows[-1]), rows[-1], found)


def quantile(
    x: Any, q: Any, axis: Axes | None = None, *, method: str = "linear", keepdims: bool = False
) -> Array:
    """Quantiles, of shares 0 to 1; see `percentile`."""
    return _quantile(x, np.asarray(q, float), axis, method, keepdims=keepdims)


@method("median")
def median(x: Any, axis: Axes | None = None, *, keepdims: bool = False) -> Array:
    """The median along an axis (None: of all elements); see `percentile`."""
    return percentile(x, 50.0, axis=axis, keepdims=keepdims)
