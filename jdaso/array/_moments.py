"""Means and variances: each node's own, then all nodes' merged by their counts."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array, method
from ._layout import axes_of
from ._reduce import Axis, joins, left, type_of_means

_LANES = 64
"""Columns that are summed together: of few columns, those of several rows side by side."""


def moments(x: Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array, int]:
    """Mean, sum of squared distances from the mean, and their number, over axes that are kept.

    Nodes' means are merged by their counts (Chan, Golub and LeVeque 1983), in one gather.
    """
    number = math.prod(x.shape[k] for k in axes)
    here = math.prod(x.block.shape[k] for k in axes)
    mean, spread = _local_moments(x.block, axes, float(max(here, 1)))
    if not number:
        mean = jnp.full_like(mean, jnp.nan)
    if not _joined(x, axes, number):
        return mean, spread, number
    nodes = x.world.gather(_as_row(mean, spread), (1,) * x.world.nodes)
    return *_merged(nodes, _weights(x, spread.dtype), float(number)), number


def _joined(x: Array, axes: tuple[int, ...], number: int) -> bool:
    """Returns whether several nodes have a part of the numbers."""
    return number > 0 and x.world.nodes > 1 and joins(x, axes)


def _weights(x: Array, dtype: np.dtype) -> np.ndarray:
    """Each node's share of the rows, in an axis before those of the array."""
    shares = np.array(x.counts, float) / sum(x.counts)
    return shares.astype(dtype).reshape(-1, *(1,) * x.ndim)


@jax.jit
def _as_row(mean: jax.Array, *others: jax.Array) -> jax.Array:
    """A node's numbers as a row of what is gathered, ``[1, n, ...]``, in the type of the mean."""
    return jnp.stack([mean, *(one.astype(mean.dtype) for one in others)])[None]


@jax.jit
def _merged(nodes: jax.Array, weights: jax.Array, number: Any) -> tuple[jax.Array, jax.Array]:
    """The mean of all nodes, and the sum of squared distances from it."""
    means, spreads = nodes[:, 0], nodes[:, 1]
    mean = jnp.sum(weights.astype(means.dtype) * means, 0)
    between = number * jnp.sum(weights * jnp.abs(means - mean) ** 2, 0)
    return mean, jnp.sum(spreads.real.astype(weights.dtype), 0) + between


@partial(jax.jit, static_argnames="axes")
def _local_mean(block: jax.Array, axes: tuple[int, ...], number: Any) -> jax.Array:
    return _sums(block.astype(type_of_means(block.dtype)), axes) / number


@partial(jax.jit, static_argnames="axes")
def _local_moments(
    block: jax.Array, axes: tuple[int, ...], number: Any
) -> tuple[jax.Array, jax.Array]:
    """Mean and sum of squared distances from the mean of a block; no copy of the block is made."""
    block = block.astype(type_of_means(block.dtype))
    mean = _sums(block, axes) / number
    return mean, _sums(block, axes, mean)


def _sums(block: jax.Array, axes: tuple[int, ...], about: jax.Array | None = None) -> jax.Array:
    """Sums of numbers, or of their squared distances from a mean, over axes that are kept.

    XLA adds the rows of a matrix one by one. Several rows of few columns, taken as one, fill the
    processor's registers.
    """
    rows, kept = math.prod(block.shape[: len(axes)]), block.shape[len(axes) :]
    columns = math.prod(kept)
    together = _LANES // columns if 1 < columns < _LANES else 1
    if together == 1 or rows < 2 * together or axes != tuple(range(len(axes))):
        return jnp.sum(_squared(block, about), axes, keepdims=True)
    flat, whole = block.reshape(rows, columns), rows // together * together
    about = None if about is None else about.reshape(columns)
    wide = None if about is None else jnp.tile(about, together)
    side_by_side = flat[:whole].reshape(-1, together * columns)
    sums = jnp.sum(_squared(side_by_side, wide), 0).reshape(together, columns)
    total = jnp.sum(sums, 0) + jnp.sum(_squared(flat[whole:], about), 0)
    return total.reshape(*(1,) * len(axes), *kept)


def _squared(x: jax.Array, about: jax.Array | None) -> jax.Array:
    return x if about is None else jnp.abs(x - about) ** 2


class _Form(NamedTuple):
    """The axes of a result, and its type; None: the type of the moments."""

    axes: tuple[int, ...]
    keepdims: bool
    dtype: np.dtype | None

    def of(self, found: jax.Array) -> jax.Array:
        """Returns moments, whose axes are all there, in this form."""
        found = found if self.keepdims else jnp.squeeze(found, self.axes)
        return found if self.dtype is None else found.astype(self.dtype)


@partial(jax.jit, static_argnames="form")
def _own_mean(block: jax.Array, number: Any, *, form: _Form) -> jax.Array:
    return form.of(_local_mean(block, form.axes, number))


@partial(jax.jit, static_argnames="form")
def _merged_mean(nodes: jax.Array, weights: jax.Array, *, form: _Form) -> jax.Array:
    means = nodes[:, 0]
    return form.of(jnp.sum(weights.astype(means.dtype) * means, 0))


@partial(jax.jit, static_argnames=("form", "root"))
def _own_variance(
    block: jax.Array, number: Any, divisor: Any, *, form: _Form, root: bool
) -> jax.Array:
    _, spread = _local_moments(block, form.axes, number)
    return _variance(spread, divisor, form=form, root=root)


@partial(jax.jit, static_argnames=("form", "root"))
def _variance(spread: jax.Array, divisor: Any, *, form: _Form, root: bool) -> jax.Array:
    return form.of(jnp.sqrt(spread / divisor) if root else spread / divisor)


def _asked(x: Any, axis: Axis, *, keepdims: bool) -> tuple[Array, _Form, int]:
    """An array, the form of its moments, and the number of elements of each."""
    x = as_array(x)
    axes = axes_of(axis, x.ndim)
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else None
    return x, _Form(axes, keepdims, dtype), math.prod(x.shape[k] for k in axes)


@method("mean")
def mean(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Arithmetic mean over axes (None: all); NaN of no elements. Moves half as much as `var`."""
    x, form, number = _asked(x, axis, keepdims=keepdims)
    if _joined(x, form.axes, number):
        here = math.prod(x.block.shape[k] for k in form.axes)
        row = _as_row(_local_mean(x.block, form.axes, float(max(here, 1))))
        nodes = x.world.gather(row, (1,) * x.world.nodes)
        found = _merged_mean(nodes, _weights(x, row.real.dtype), form=form)
    else:
        found = _own_mean(x.block, float(number), form=form)
    return Array(found, left(x, form.axes, keepdims=keepdims), x.world)


@method("var")
def var(
    x: Any,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
    ddof: float | None = None,
) -> Array:
    """Variance ``sum |x - mean|² / (n - correction)`` over axes (None: all).

    `ddof` is NumPy's older name of `correction`.

    Moves at most two numbers of each result, in one operation, from each node to each other one.
    """
    left = float(correction if ddof is None else ddof)
    return _variances(x, axis, left, keepdims=keepdims, root=False)


@method("std")
def std(
    x: Any,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    keepdims: bool = False,
    ddof: float | None = None,
) -> Array:
    """Standard deviation, the root of `var`, which moves the same."""
    left = float(correction if ddof is None else ddof)
    return _variances(x, axis, left, keepdims=keepdims, root=True)


def _variances(x: Any, axis: Axis, correction: float, *, keepdims: bool, root: bool) -> Array:
    x, form, number = _asked(x, axis, keepdims=keepdims)
    divisor = max(number - correction, 0.0)
    if _joined(x, form.axes, number):
        _, spread, _ = moments(x, form.axes)
        found = _variance(spread, divisor, form=form, root=root)
    else:
        found = _own_variance(x.block, float(number), divisor, form=form, root=root)
    return Array(found, left(x, form.axes, keepdims=keepdims), x.world)
