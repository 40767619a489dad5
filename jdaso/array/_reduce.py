"""Reductions: each node's share, then one operation between nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._array import METHODS, Array, as_array, made, method
from ._layout import ArrayLayout, Axes, axes_of, replaced
from ._world import ALONE, World

Axis = Axes | None


def _left(x: Array, axes: tuple[int, ...], *, keepdims: bool) -> ArrayLayout:
    """The layout of a reduction: the split stays if its axis does."""
    if keepdims:
        shape = tuple(1 if k in axes else n for k, n in enumerate(x.shape))
    else:
        shape = tuple(n for k, n in enumerate(x.shape) if k not in axes)
    if x.split is None or x.split in axes:
        return ArrayLayout(shape)
    axis = x.split if keepdims else x.split - sum(k < x.split for k in axes)
    return ArrayLayout(shape, axis, x.counts)


def _joins(x: Array, axes: tuple[int, ...]) -> bool:
    return x.split is not None and x.split in axes


class _Reduction(NamedTuple):
    """A reduction whose shares are reduced in the same way."""

    local: Callable[..., jax.Array]
    between: str
    identity: Callable[[np.dtype], Any]


def _least(dtype: np.dtype) -> Any:
    return False if dtype.kind == "b" else _limits(dtype)[0]


def _most(dtype: np.dtype) -> Any:
    return True if dtype.kind == "b" else _limits(dtype)[1]


def _limits(dtype: np.dtype) -> tuple[Any, Any]:
    """The smallest and the largest number of a type: infinite if the type has infinity."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
    ends = np.array([-np.inf, np.inf]).astype(dtype)
    about = jnp.finfo(dtype)
    return tuple(ends) if np.isinf(ends.astype(float)).all() else (about.min, about.max)


_RULES = {
    "sum": _Reduction(jnp.sum, "sum", lambda _: 0),
    "prod": _Reduction(jnp.prod, "prod", lambda _: 1),
    "min": _Reduction(jnp.min, "min", _most),
    "max": _Reduction(jnp.max, "max", _least),
    "all": _Reduction(jnp.all, "min", lambda _: True),
    "any": _Reduction(jnp.any, "max", lambda _: False),
}


def _reduced(name: str, x: Any, axis: Axis, *, keepdims: bool, **options: Any) -> Array:
    x, rule = as_array(x), _RULES[name]
    axes = axes_of(axis, x.ndim)
    layout = _left(x, axes, keepdims=keepdims)
    if name in ("min", "max") and jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{name} of {x.dtype}: complex numbers have no order. Take abs or real.")
    if not _joins(x, axes):
        found = rule.local(x.block, axis=axes, keepdims=keepdims, **options)
        return Array(found, layout, x.world)
    if name in ("min", "max") and math.prod(x.shape[k] for k in axes) == 0:
        raise ValueError(f"{name} of no elements: the shape is {x.shape}. Give at least one.")
    if x.block.shape[x.layout.split or 0] or name not in ("min", "max"):
        share = rule.local(x.block, axis=axes, keepdims=keepdims, **options)
    else:  # no rows here
        share = jnp.full(layout.shape, rule.identity(x.dtype), x.dtype)
    return Array(_between(share, name, x.world), layout, x.world)


def _between(share: jax.Array, name: str, at: World) -> jax.Array:
    """Reduces nodes' shares; a mark with them carries NaN, which MPI's min and max may drop."""
    rule, dtype = _RULES[name], share.dtype
    if at.nodes == 1:
        return share
    if name not in ("min", "max") or not jnp.issubdtype(dtype, jnp.floating):
        return at.reduce(share, rule.between)
    of = jnp if isinstance(share, Tracer) else np  # NumPy starts faster, and shares are small
    own = of.asarray(share)
    nan = of.isnan(own)
    numbers = of.where(nan, of.asarray(rule.identity(dtype), dtype), own)
    mark = of.where(nan, -1 if name == "min" else 1, 0).astype(dtype)
    found = of.asarray(at.reduce(jnp.asarray(of.stack([numbers, mark])), rule.between))
    return jnp.asarray(of.where(found[1] != 0, of.asarray(np.nan, dtype), found[0]))


def _sums(name: str) -> Callable[..., Array]:
    def call(x: Any, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
        return _reduced(name, x, axis, keepdims=keepdims, dtype=dtype)

    return _told(call, name)


def _picks(name: str) -> Callable[..., Array]:
    def call(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Array:
        return _reduced(name, x, axis, keepdims=keepdims)

    return _told(call, name)


def _told(call: Callable[..., Array], name: str) -> Callable[..., Array]:
    moves = "Moves nothing, or one reduction of the result if the split is among them."
    return made(name, f"`jax.numpy.{name}` over axes (None: all). {moves}", call)


REDUCTIONS: dict[str, Callable[..., Array]] = {
    **{name: _sums(name) for name in ("sum", "prod")},
    **{name: _picks(name) for name in ("min", "max", "all", "any")},
}
"""Reductions, by their names in the array API standard."""


def moments(x: Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array, int]:
    """Mean, sum of squared distances from the mean, and their number, over axes that are kept.

    Nodes' means are merged by their counts (Chan, Golub and LeVeque 1983), in one gather.
    """
    number = math.prod(x.shape[k] for k in axes)
    here = math.prod(x.block.shape[k] for k in axes)
    mean, spread = _local_moments(x.block, axes, float(max(here, 1)))
    if not number:
        mean = jnp.full_like(mean, jnp.nan)
    if not number or not _joins(x, axes):
        return mean, spread, number
    both = jnp.stack([mean, spread.astype(mean.dtype)])
    nodes = x.world.gather(both[None], (1,) * x.world.nodes)
    return *_merged(nodes[:, 0], nodes[:, 1], _weights(x, spread.dtype), float(number)), number


def _mean(x: Array, axes: tuple[int, ...]) -> jax.Array:
    """The mean over axes that are kept, as `moments` finds it."""
    here = math.prod(x.block.shape[k] for k in axes)
    mean = _local_mean(x.block, axes, float(max(here, 1)))
    if not math.prod(x.shape[k] for k in axes):
        return jnp.full_like(mean, jnp.nan)
    if not _joins(x, axes) or x.world.nodes == 1:
        return mean
    means = x.world.gather(mean[None], (1,) * x.world.nodes)
    return _merged_mean(means, _weights(x, mean.real.dtype))


def _weights(x: Array, dtype: np.dtype) -> np.ndarray:
    """Each node's share of the rows, in an axis before those of the array."""
    shares = np.array(x.counts, float) / sum(x.counts)
    return shares.astype(dtype).reshape(-1, *(1,) * x.ndim)


@jax.jit
def _merged_mean(means: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.sum(weights.astype(means.dtype) * means, 0)


@jax.jit
def _merged(
    means: jax.Array, spreads: jax.Array, weights: jax.Array, number: Any
) -> tuple[jax.Array, jax.Array]:
    """The mean of all nodes, and the sum of squared distances from it."""
    mean = jnp.sum(weights.astype(means.dtype) * means, 0)
    between = number * jnp.sum(weights * jnp.abs(means - mean) ** 2, 0)
    return mean, jnp.sum(spreads.real.astype(weights.dtype), 0) + between


@partial(jax.jit, static_argnames="axes")
def _local_mean(block: jax.Array, axes: tuple[int, ...], number: Any) -> jax.Array:
    return jnp.sum(block.astype(type_of_means(block.dtype)), axes, keepdims=True) / number


@partial(jax.jit, static_argnames="axes")
def _local_moments(
    block: jax.Array, axes: tuple[int, ...], number: Any
) -> tuple[jax.Array, jax.Array]:
    """Mean and sum of squared distances from the mean of a block; no copy of the block is made."""
    block = block.astype(type_of_means(block.dtype))
    mean = jnp.sum(block, axes, keepdims=True) / number
    return mean, jnp.sum(jnp.abs(block - mean) ** 2, axes, keepdims=True)


def type_of_means(dtype: np.dtype) -> np.dtype:
    """Returns the type of means: floats for integers, float32 for narrower floats."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.result_type(float)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def _of_moments(x: Any, axis: Axis, value: Callable[..., jax.Array], *, keepdims: bool) -> Array:
    """The value of a function of an array and axes; the function keeps these."""
    x = as_array(x)
    axes = axes_of(axis, x.ndim)
    layout = _left(x, axes, keepdims=keepdims)
    found = value(x, axes)
    if not keepdims:
        found = jnp.squeeze(found, axes)
    if jnp.issubdtype(x.dtype, jnp.floating):
        found = found.astype(x.dtype)
    return Array(found, layout, x.world)


@method("mean")
def mean(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Arithmetic mean over axes (None: all); NaN of no elements. Moves half as much as `var`."""
    return _of_moments(x, axis, _mean, keepdims=keepdims)


@method("var")
def var(x: Any, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Variance ``sum |x - mean|² / (n - correction)`` over axes (None: all).

    Moves at most two numbers of each result, in one operation, from each node to each other one.
    """

    def value(x: Array, axes: tuple[int, ...]) -> jax.Array:
        _, spread, number = moments(x, axes)
        return spread / max(number - float(correction), 0.0)

    return _of_moments(x, axis, value, keepdims=keepdims)


@method("std")
def std(x: Any, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Standard deviation, the root of `var`."""
    found = var(x, axis=axis, correction=correction, keepdims=keepdims)
    return Array(jnp.sqrt(found.block), found.layout, found.world)


@method("count_nonzero")
def count_nonzero(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The number of elements that are not 0, over axes (None: all)."""
    x = as_array(x)
    nonzero = Array(x.block != 0, x.layout, x.world)
    return REDUCTIONS["sum"](nonzero, axis=axis, dtype=index_type(x.size), keepdims=keepdims)


def index_type(size: int) -> np.dtype:
    """Returns the type of indices and counts, up to a size.

    Raises:
        ValueError: the type has 32 bits, which are too few.
    """
    kind = np.dtype(jnp.result_type(int))
    if size > np.iinfo(kind).max:
        raise ValueError(
            f"{size} elements need indices of 64 bits, JAX is set to 32. Set "
            "jax.config.update('jax_enable_x64', True)."
        )
    return kind


def _extreme(x: Any, axis: int | None, *, keepdims: bool, least: bool) -> Array:
    """The index of the first smallest or largest element."""
    x = as_array(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"argmin of {x.dtype}: complex numbers have no order. Take abs or real.")
    if axis is None:
        return _extreme_of_all(x, keepdims=keepdims, least=least)
    (along,) = axes_of(axis, x.ndim)
    layout = _left(x, (along,), keepdims=keepdims)
    pick, kind = jnp.argmin if least else jnp.argmax, index_type(x.shape[along])
    if x.shape[along] == 0:
        raise ValueError(f"argmin and argmax need at least one element, got shape {x.shape}.")
    if not _joins(x, (along,)):
        return Array(pick(x.block, along, keepdims=keepdims).astype(kind), layout, x.world)
    shape = replaced(x.shape, along, 1)
    if x.block.shape[along]:
        index = pick(x.block, along, keepdims=True).astype(kind)
        value = jnp.take_along_axis(x.block, index, along)
    else:
        index, value = jnp.zeros(shape, kind), jnp.zeros(shape, x.dtype)
    ones = (1,) * x.world.nodes
    values, indices = x.world.gather(value[None], ones), x.world.gather(index[None], ones)
    filled = np.flatnonzero(x.counts)  # nodes without rows have no candidate
    best = pick(values[filled], 0, keepdims=True)
    begins = jnp.asarray(np.array(x.layout.begins)[filled], kind)
    found = jnp.take_along_axis(indices[filled], best, 0)[0] + begins[best[0]]
    return Array(found if keepdims else jnp.squeeze(found, along), layout, x.world)


def _extreme_of_all(x: Array, *, keepdims: bool, least: bool) -> Array:
    flat = METHODS["reshape"](x, (-1,))
    found = _extreme(flat, 0, keepdims=False, least=least)
    return METHODS["reshape"](found, (1,) * x.ndim) if keepdims else found


@method("argmin")
def argmin(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The index of the first smallest element along an axis (None: of the flat array)."""
    return _extreme(x, axis, keepdims=keepdims, least=True)


@method("argmax")
def argmax(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The index of the first largest element along an axis (None: of the flat array)."""
    return _extreme(x, axis, keepdims=keepdims, least=False)


def sharers(x: Array) -> World:
    """Returns the nodes that share rows; a node that has all rows needs no other."""
    return ALONE if x.split is None else x.world


def agreed(at: World, *found: jax.Array) -> list[jax.Array]:
    """Returns the first node's numbers, on all nodes: processors may differ in the last bit."""
    first = at.node == 0
    return [at.reduce(one if first else jnp.zeros_like(one), "sum") for one in found]
