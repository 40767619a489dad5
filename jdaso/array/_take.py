"""Elements by their indices, and indices of elements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._array import Array, as_array, method, of_one_world
from ._elementwise import elementwise, piece
from ._index import checked, getitem
from ._layout import ArrayLayout, axis_of, balanced, replaced
from ._move import laid, resplit, take_rows
from ._reduce import index_type


@method("take")
def take(x: Any, indices: Any, axis: int | None = None) -> Array:
    """Elements at indices of an axis, in their order: ``x[..., indices, ...]``.

    Args:
        x: the array.
        indices: integers, the same on all nodes.
        axis: the axis; None only for an array of one axis.

    Moves nothing, or along the split the rows that are on another node.

    Raises:
        ValueError: the array has several axes, and none is given.
    """
    x = as_array(x)
    if axis is None and x.ndim != 1:
        raise ValueError(f"take of an array of {x.ndim} axes needs one. Give axis=...")
    along = axis_of(axis or 0, x.ndim)
    return getitem(x, (*(slice(None),) * along, as_array(indices)))


@method("take_along_axis")
def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Array:
    """Elements ``x[..., indices[..., k, ...], ...]``: an index of an axis for each place.

    Args:
        x: the array.
        indices: integers, of as many axes; all but `axis` are broadcast to one shape.
        axis: the axis.

    Moves nothing if neither is split along the axis and both have one layout; else both as
    `resplit` to another axis does, along which the result is then split. With a single axis, moves
    the indices to all nodes and each element once.

    Raises:
        ValueError: the numbers of axes differ.
        IndexError: an index is out of range, and all nodes have all indices. If indices are split,
            and in compiled programs, the element is NaN or the smallest integer instead.
    """
    x, index = of_one_world(x, indices)
    if x.ndim != index.ndim:
        raise ValueError(
            f"take_along_axis needs as many axes of both, got {x.shape} and {index.shape}."
        )
    along = axis_of(axis, x.ndim)
    if index.split is None and not isinstance(index.block, Tracer):
        checked(index.block, x.shape[along], along)
    if x.split is None and index.split is None:
        found = jnp.take_along_axis(x.block, index.block, along)
        return Array(found, ArrayLayout(found.shape), x.world)
    if x.ndim == 1:
        return take_rows(resplit(x, 0), 0, checked(np.asarray(index), x.size, 0))
    shape = np.broadcast_shapes(replaced(x.shape, along, 1), replaced(index.shape, along, 1))
    other, counts = _other_split(x, index, along, shape)
    layouts = [
        ArrayLayout(replaced(shape, along, y.shape[along]), other, counts) for y in (x, index)
    ]
    rows, numbers = (piece(y, at, x.world) for y, at in zip((x, index), layouts, strict=True))
    return Array(jnp.take_along_axis(rows, numbers, along), layouts[1], x.world)


def _other_split(
    x: Array, index: Array, along: int, shape: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """Another axis, with its counts, along which to divide both: a divided one, if there is any."""
    for y in (index, x):
        if y.split not in (None, along) and y.shape[y.split or 0] == shape[y.split or 0]:
            return y.split or 0, y.counts
    other = max((k for k in range(len(shape)) if k != along), key=lambda k: shape[k])
    return other, balanced(shape[other], x.world.nodes)


@method("nonzero")
def nonzero(x: Any) -> tuple[Array, ...]:
    """The places of the elements that are not 0: their indices along each axis, in ascending order.

    Moves one number from each node, and first, if rows are not split, what `resplit` to 0 moves.

    Raises:
        ValueError: the array has no axes.
    """
    x = as_array(x)
    if not x.ndim:
        raise ValueError("nonzero of an array without axes. Take x.reshape((1,)).")
    if x.split is not None:
        x = resplit(x, 0)
    kind, at = index_type(max(x.shape)), x.world
    places = [np.asarray(one) for one in np.nonzero(np.asarray(x.block))]
    counts: tuple[int, ...] = ()
    if x.split is not None:
        places[0] = places[0] + x.layout.begins[at.node]
        counts = tuple(at.numbers(np.array([len(places[0])]))[:, 0].tolist())
    size = sum(counts) if counts else len(places[0])
    layout = ArrayLayout((size,), x.split, counts)
    return tuple(Array(jnp.asarray(one, kind), layout, at) for one in places)


@method("searchsorted")
def searchsorted(x1: Any, x2: Any, *, side: str = "left", sorter: Any = None) -> Array:
    """The places in a sorted line before which numbers belong.

    Args:
        x1: the line, of one axis.
        x2: the numbers; the result has their layout.
        side: "left": before equal numbers; "right": after them.
        sorter: indices that sort the line; None: the line is sorted.

    Moves nothing if the line is whole on each node; else the smaller of both to all nodes and, if
    the numbers are whole then, one reduction of the result.

    Raises:
        ValueError: the line does not have one axis, or there is no such side.
    """
    line, x = of_one_world(x1, x2)
    if line.ndim != 1 or side not in ("left", "right"):
        raise ValueError(
            f"searchsorted takes a line and 'left' or 'right', got {line.shape}, {side!r}."
        )
    if sorter is not None:
        line = take(line, sorter)
    kind, common = index_type(line.size), jnp.result_type(line.dtype, x.dtype)

    def places(rows: Any) -> Any:
        rows = rows.astype(common)
        return lambda block: jnp.searchsorted(rows, block.astype(common), side=side).astype(kind)

    if line.split is not None and (x.split is None or x.nbytes < line.nbytes):
        whole = resplit(x, None)
        share = places(line.block)(whole.block)
        found = Array(line.world.reduce(share, "sum"), whole.layout, line.world)
        return laid(found, x.layout)
    return elementwise(places(resplit(line, None).block), x)


FEW = 16
"""Numbers that are compared with all others; more are sorted."""


def isin(x1: Any, x2: Any, *, invert: bool = False) -> Array:
    """Flags the elements of x1 that x2 has.

    Moves nothing if x2 is whole on each node; else the smaller of both to all nodes and, if that is
    x1, one reduction of the result.
    """
    x, found = of_one_world(x1, x2)
    common = jnp.result_type(x.dtype, found.dtype)

    def flags(block: jax.Array, among: jax.Array) -> jax.Array:
        # Sorted for a search; a few are compared with all.
        method = "compare_all" if among.size <= FEW else "sort"
        return jnp.isin(block.astype(common), among.astype(common), method=method)

    if found.split is not None and x.nbytes < found.nbytes:
        line = resplit(x, None)
        mine = flags(line.block, found.block).astype(jnp.int32)
        merged = Array(found.world.reduce(mine, "max").astype(bool), line.layout, found.world)
        here = laid(merged, x.layout)
    else:
        whole = resplit(found, None).block
        here = elementwise(lambda block: flags(block, whole), x)
    return elementwise(jnp.logical_not, here) if invert else here
