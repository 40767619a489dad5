"""Weighted means, covariances and correlations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ._array import Array, as_array, of_one_world
from ._elementwise import sqrt
from ._layout import Axes, axis_of
from ._moments import mean, var
from ._products import matmul
from ._reduce import REDUCTIONS, type_of_means
from ._shape import expand_dims, permute_dims, squeeze

_sum = REDUCTIONS["sum"]


def average(x: Any, axis: Axes | None = None, *, weights: Any = None) -> Array:
    """The weighted mean ``sum w x / sum w`` over axes (None: all).

    Args:
        x: the array.
        axis: the axes.
        weights: of the array's shape, or of one axis, that of `axis`; None: 1 each.

    Moves two reductions of the result if the split is among the axes; without weights as `mean`.

    Raises:
        ValueError: the weights have another shape.
    """
    if weights is None:
        return mean(x, axis=axis)
    x, weights = of_one_world(x, weights)
    weights = weights.astype(type_of_means(jnp.result_type(x.dtype, weights.dtype)))
    if weights.shape == x.shape:
        return _sum(x * weights, axis=axis) / _sum(weights, axis=axis)
    return _sum(x * _along(weights, x, axis), axis=axis) / _sum(weights)


def _along(weights: Array, x: Array, axis: Any) -> Array:
    """Weights of one axis, with the others of length 1."""
    along = axis_of(axis, x.ndim) if hasattr(axis, "__index__") else None
    if along is None or weights.shape != (x.shape[along],):
        raise ValueError(
            f"weights have the shape {weights.shape}, the array {x.shape}, axis is {axis}. Give "
            "one for each element, or one for each index of the axis."
        )
    for k in range(x.ndim):
        weights = weights if k == along else expand_dims(weights, axis=k)
    return weights


def cov(x: Any, *, rowvar: bool = True, correction: float = 1.0) -> Array:
    """The covariances ``(x - mean) (x - mean)ᴴ / (n - correction)`` of variables, ``[d, d]``.

    Args:
        x: ``[d, n]``: each row is a variable, or ``[n]``: one.
        rowvar: False: each column is a variable, ``[n, d]``.
        correction: subtracted from n.

    Moves two numbers of each variable from each node and one reduction of d² numbers, if the
    observations are split; what `matmul` moves, if the variables are. The result is whole then, or
    split along its rows.

    Raises:
        ValueError: there are more than two axes.
    """
    x, single = _variables(x, rowvar=rowvar)
    centered = x - mean(x, axis=1, keepdims=True)
    product = matmul(centered, permute_dims(centered.conj(), (1, 0)))
    found = product / max(x.shape[1] - float(correction), 0.0)
    return squeeze(found, (0, 1)) if single else found


def _variables(x: Any, *, rowvar: bool) -> tuple[Array, bool]:
    """The variables as rows, and whether there was only one, without an axis of its own."""
    x = as_array(x)
    if x.ndim not in (1, 2):
        raise ValueError(f"Covariances are of [d, n] or [n], the shape is {x.shape}.")
    wide = jnp.result_type(x.dtype, type_of_means(x.dtype))
    x = Array(x.block.astype(wide), x.layout, x.world)
    if x.ndim == 1:
        return expand_dims(x, axis=0), True
    rows = x if rowvar else permute_dims(x, (1, 0))
    return rows, rows.shape[0] == 1


def corrcoef(x: Any, *, rowvar: bool = True) -> Array:
    """The correlations of variables, ``[d, d]``: covariance / both standard deviations.

    Args:
        x: as in `cov`.
        rowvar: as in `cov`.

    Moves what `cov` moves, and two more numbers of each variable.
    """
    rows, single = _variables(x, rowvar=rowvar)
    spread = sqrt(var(rows, axis=1))
    found = cov(rows, correction=0.0)
    found = found / expand_dims(spread, axis=1) / expand_dims(spread, axis=0)
    found = Array(_bounded(found.block), found.layout, found.world)
    return squeeze(found, (0, 1)) if single else found


def _bounded(block: jax.Array) -> jax.Array:
    """Correlations, clipped where rounding has put them beyond 1."""
    if jnp.issubdtype(block.dtype, jnp.complexfloating):
        return jax.lax.complex(jnp.clip(block.real, -1, 1), jnp.clip(block.imag, -1, 1))
    return jnp.clip(block, -1, 1)


def outer(x1: Any, x2: Any) -> Array:
    """The products of all elements of one array with all of another, ``[n, m]``.

    Of two split arrays the larger one stays in place; the other one moves to all nodes.
    """
    a, b = (one.reshape((-1,)) for one in of_one_world(x1, x2))
    return expand_dims(a, axis=1) * expand_dims(b, axis=0)
