"""The largest or smallest elements along an axis, without sorting it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array, method
from ._layout import ArrayLayout, axis_of, replaced
from ._reduce import index_type


@method("topk")
def topk(x: Any, k: int, *, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """The k largest elements along an axis, descending, and their indices; of equal ones the first.

    Args:
        x: the array.
        k: their number.
        axis: the axis.
        largest: False: the smallest ones, ascending.

    Moves nothing along another axis than the split; along the split k elements and indices from
    each node.

    Raises:
        ValueError: there are fewer than k elements, or they are complex.
    """
    x = as_array(x)
    along = axis_of(axis, x.ndim)
    if not 0 <= k <= x.shape[along] or jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise ValueError(f"topk of {k} real elements along axis {axis} of {x.shape}, {x.dtype}.")
    index_type(x.shape[along])
    block = jnp.moveaxis(x.block, along, -1)
    values, indices = _best(block, min(k, block.shape[-1]), largest)
    shape, split = replaced(x.shape, along, k), x.split
    if split == along:
        indices = indices + x.layout.begins[x.world.node]
        counts = tuple(min(k, count) for count in x.counts)
        values, indices = (x.world.gather(one, counts, x.ndim - 1) for one in (values, indices))
        values, places = _best(values, k, largest)
        indices = jnp.take_along_axis(indices, places, -1)
        split = None
    layout = ArrayLayout(shape, split, () if split is None else x.counts)
    found = (jnp.moveaxis(one, -1, along) for one in (values, indices))
    first, second = (Array(one, layout, x.world) for one in found)
    return first, second


def _best(block: jax.Array, k: int, largest: bool) -> tuple[jax.Array, jax.Array]:
    """The best elements of the last axis, and their places; NaN is the largest number."""
    rank = _order_of(block)
    places = jax.lax.top_k(rank if largest else ~rank, k)[1]
    return jnp.take_along_axis(block, places, -1), places


def _order_of(block: jax.Array) -> jax.Array:
    """Integers in the order of the elements; see `_sort.order_of`."""
    if block.dtype == bool or jnp.issubdtype(block.dtype, jnp.unsignedinteger):
        return block.astype(np.uint8) if block.dtype == bool else block
    if jnp.issubdtype(block.dtype, jnp.integer):
        return block
    plain = jnp.where(block == 0, jnp.zeros((), block.dtype), block)
    plain = jnp.where(jnp.isnan(plain), jnp.asarray(jnp.nan, block.dtype), plain)
    bits = jax.lax.bitcast_convert_type(plain, np.dtype(f"i{block.dtype.itemsize}"))
    return jnp.where(bits < 0, ~bits ^ jnp.iinfo(bits.dtype).min, bits)
