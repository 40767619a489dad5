"""Random arrays: the same numbers for any number of nodes.

Each index of the first axis has a key of its own (`jax.random.fold_in`), so a number depends only
on the key and its own place. Nothing moves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._array import Array
from ._create import chosen, scalar, shape_of
from ._layout import ArrayLayout
from ._move import laid
from ._reduce import index_type
from ._whole_numbers import require_inside
from ._world import world

Key = jax.Array | int | np.integer


def _key_of(key: Key) -> jax.Array:
    """A key, or that of a seed, which may be an integer of Python or of NumPy."""
    return jax.random.key(operator.index(key)) if isinstance(key, int | np.integer) else key


def _drawn(
    key: Key, shape: Any, split: int | None, draw: Callable[..., jax.Array], *bounds: Any
) -> Array:
    shape = shape_of(shape)
    index_type(max(shape, default=0))
    key = _key_of(key)
    at = world()
    if not shape:
        return Array(draw(key, (), *bounds), ArrayLayout(()), at)
    layout = ArrayLayout(shape).over(chosen(split, len(shape)), at.nodes)
    rows = layout if layout.split == 0 else ArrayLayout(shape)
    first, count = (rows.begins[at.node], rows.counts[at.node]) if rows.counts else (0, shape[0])
    block = _rows(key, first, bounds, count=count, shape=shape[1:], draw=draw)
    return laid(Array(block, rows, at), layout)


@partial(jax.jit, static_argnames=("count", "shape", "draw"))
def _rows(
    key: jax.Array,
    first: Any,
    bounds: tuple[Any, ...],
    *,
    count: int,
    shape: tuple[int, ...],
    draw: Any,
) -> jax.Array:
    keys = jax.vmap(partial(jax.random.fold_in, key))(first + jnp.arange(count))
    return jax.vmap(lambda one: draw(one, shape, *bounds))(keys)


def normal(key: Key, shape: Any, *, dtype: Any = jnp.float32, split: int | None = None) -> Array:
    """Numbers of the standard normal distribution. Nothing moves.

    Args:
        key: a key of `jax.random`, or a seed.
        shape: the shape.
        dtype: a floating-point type.
        split: the axis to divide over nodes; for another one than 0 each node draws whole rows.
    """
    return _drawn(key, shape, split, _Draw(jax.random.normal, dtype))


def uniform(
    key: Key,
    shape: Any,
    *,
    minval: Any = 0.0,
    maxval: Any = 1.0,
    dtype: Any = jnp.float32,
    split: int | None = None,
) -> Array:
    """Uniformly distributed numbers from minval up to, but without, maxval; see `normal`.

    The bounds are numbers, or arrays without axes; so are those of `integers`.
    """
    bounds = scalar(minval), scalar(maxval)
    return _drawn(key, shape, split, _Draw(jax.random.uniform, dtype), *bounds)


def integers(
    key: Key, low: Any, high: Any, shape: Any, *, dtype: Any = int, split: int | None = None
) -> Array:
    """Integers from low up to, but without, high; see `normal`."""
    bounds = scalar(low), scalar(high)
    for bound in bounds:
        require_inside(bound, jnp.result_type(int))
    return _drawn(key, shape, split, _Draw(jax.random.randint, dtype), *bounds)


class _Draw:
    """A distribution; equal ones share one compiled program, whatever the bounds of a call."""

    def __init__(self, function: Callable[..., jax.Array], dtype: Any):
        self._about = function, jax.dtypes.canonicalize_dtype(dtype)

    def __call__(self, key: jax.Array, shape: tuple[int, ...], *bounds: Any) -> jax.Array:
        function, dtype = self._about
        named = dict(zip(("minval", "maxval"), bounds, strict=False))
        return function(key, shape, dtype=dtype, **named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Draw) and self._about == other._about

    def __hash__(self) -> int:
        return hash(self._about)


def permutation(key: Key, size: int, *, split: int | None = None) -> Array:
    """The integers below `size`, in a random order: each node makes all of them. Nothing moves."""
    key = _key_of(key)
    whole = Array(jax.random.permutation(key, size), ArrayLayout((size,)), world())
    return whole if split is None else laid(whole, whole.layout.over(0, whole.world.nodes))
