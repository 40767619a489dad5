"""Reductions: each node's share, then one operation between nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._array import Array, as_array, made, method
from ._layout import ArrayLayout, Axes, axes_of, replaced
from ._world import ALONE, World

Axis = Axes | None


def left(x: Array, axes: tuple[int, ...], *, keepdims: bool) -> ArrayLayout:
    """Returns the layout of a reduction: the split stays if its axis does."""
    if keepdims:
        shape = tuple(1 if k in axes else n for k, n in enumerate(x.shape))
    else:
        shape = tuple(n for k, n in enumerate(x.shape) if k not in axes)
    if x.split is None or x.split in axes:
        return ArrayLayout(shape)
    axis = x.split if keepdims else x.split - sum(k < x.split for k in axes)
    return ArrayLayout(shape, axis, x.counts)


def joins(x: Array, axes: tuple[int, ...]) -> bool:
    """Returns whether a reduction over axes joins the nodes' blocks."""
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
    layout = left(x, axes, keepdims=keepdims)
    if name in ("min", "max") and jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{name} of {x.dtype}: complex numbers have no order. Take abs or real.")
    if not joins(x, axes):
        along = axes if axis is not None else None  # JAX starts a reduction of all axes faster
        found = rule.local(x.block, axis=along, keepdims=keepdims, **options)
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


def type_of_means(dtype: np.dtype) -> np.dtype:
    """Returns the type of means: floats for integers, float32 for narrower floats."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.result_type(float)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


@method("count_nonzero")
def count_nonzero(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The number of elements that are not 0, over axes (None: all); moves what `sum` moves."""
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
    layout = left(x, (along,), keepdims=keepdims)
    pick, kind = jnp.argmin if least else jnp.argmax, index_type(x.shape[along])
    if x.shape[along] == 0:
        raise ValueError(f"argmin and argmax need at least one element, got shape {x.shape}.")
    if not joins(x, (along,)):
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
    if not x.size:
        raise ValueError(f"argmin and argmax need at least one element, got shape {x.shape}.")
    pick, kind = jnp.argmin if least else jnp.argmax, index_type(x.size)
    index, value = jnp.zeros((), kind), jnp.zeros((), x.dtype)
    if x.block.size:
        flat = x.block.reshape(-1)
        index = pick(flat).astype(kind)
        value = flat[index]
    if x.split is not None:
        index = _first_of_all(x, index, value, pick)
    layout = ArrayLayout((1,) * x.ndim if keepdims else ())
    return Array(index.reshape(layout.shape), layout, x.world)


def _first_of_all(x: Array, index: jax.Array, value: jax.Array, pick: Any) -> jax.Array:
    """The place in the flat array of the first extreme element of all nodes."""
    assert x.split is not None
    shape = x.layout.block_shape(x.world.node)
    place = list(jnp.unravel_index(index, tuple(max(n, 1) for n in shape)))
    place[x.split] = place[x.split] + x.layout.begins[x.world.node]
    strides = [math.prod(x.shape[k + 1 :]) for k in range(x.ndim)]
    index = sum((at * stride for at, stride in zip(place, strides, strict=True)), 0 * index)
    ones = (1,) * x.world.nodes
    filled = np.flatnonzero(x.counts)  # nodes without rows have no candidate
    values, indices = (x.world.gather(one[None], ones)[filled] for one in (value, index))
    best = values[pick(values)]
    same = (values == best) | ((values != values) & (best != best))
    return jnp.min(jnp.where(same, indices, jnp.iinfo(indices.dtype).max))


@method("argmin")
def argmin(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The index of the first smallest element along an axis (None: of the flat array).

    Moves nothing, or along the split an element and an index of each result from each node.
    """
    return _extreme(x, axis, keepdims=keepdims, least=True)


@method("argmax")
def argmax(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The index of the first largest element along an axis (None: of the flat array).

    Moves what `argmin` moves.
    """
    return _extreme(x, axis, keepdims=keepdims, least=False)


def sharers(x: Array) -> World:
    """Returns the nodes that share rows; a node that has all rows needs no other."""
    return ALONE if x.split is None else x.world


def agreed(at: World, *found: jax.Array) -> list[jax.Array]:
    """Returns the first node's numbers, on all nodes: processors may differ in the last bit."""
    first = at.node == 0
    return [at.reduce(one if first else jnp.zeros_like(one), "sum") for one in found]
