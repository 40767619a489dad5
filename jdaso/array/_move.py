"""Moves blocks between layouts; each number crosses at most one link, and only if it has to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._mpi.arrays import Ranges
from ._array import Array, as_array, method
from ._layout import ArrayLayout, axis_of, balanced, overlap, replaced, shifted
from ._varied import varied


@method("resplit")
def resplit(x: Any, axis: int | None) -> Array:
    """Returns the same array, divided evenly along another axis, or whole on each node.

    Args:
        x: the array.
        axis: the new split; None: every node gets all of it.

    Moves: from one axis to another what nodes lack, n (P - 1) / P² bytes from each; to None n
    (P - 1) / P to each; from None nothing. The same layout returns the same array.
    """
    x = as_array(x)
    axis = None if axis is None else axis_of(axis, x.ndim)
    if axis == x.split:
        return x
    return laid(x, x.layout.over(axis, x.world.nodes))


@method("balance")
def balance(x: Any) -> Array:
    """Returns the same array with rows shared out evenly along its split.

    Moves the rows that are then on another node.
    """
    x = as_array(x)
    return laid(x, x.layout.over(x.split, x.world.nodes))


def laid(x: Array, layout: ArrayLayout) -> Array:
    """Returns an array in another layout of the same shape."""
    old, node = x.layout, x.world.node
    if old == layout:
        return x
    if old.split is None:
        shared = varied(x.block, x.world)
        return Array(cut(shared, layout.split, layout.slice_of(node)), layout, x.world)
    if layout.split is None:
        return Array(x.world.gather(x.block, old.counts, old.split), layout, x.world)
    return Array(_traded(x, layout), layout, x.world)


def _traded(x: Array, new: ArrayLayout) -> jax.Array:
    """The block of a layout that is also split: one part from each node."""
    node, nodes, old = x.world.node, x.world.nodes, x.layout
    assert old.split is not None and new.split is not None
    if old.split == new.split:
        mine, wanted = old.slice_of(node), new.slice_of(node)
        sent = [shifted(overlap(mine, new.slice_of(k)), mine.start) for k in range(nodes)]
        got = [shifted(overlap(wanted, old.slice_of(k)), wanted.start) for k in range(nodes)]
    else:
        sent, got = ([one.slice_of(k) for k in range(nodes)] for one in (new, old))
    shape = new.block_shape(node)
    return x.world.move(x.block, Ranges(new.split, sent), shape, Ranges(old.split, got))


def flat_rows(x: Array, shape: Sequence[int]) -> Array:
    """Returns an array with the elements of another, in their order, in a shape of the same size.

    Both are split along their first axis. Rows of the result are shared out evenly. Moves the
    elements that are then on another node.
    """
    x = resplit(x, 0)
    node, nodes = x.world.node, x.world.nodes
    new = ArrayLayout(tuple(shape)).over(0, nodes)
    widths = math.prod(x.shape[1:]), math.prod(new.shape[1:])
    flat = ArrayLayout((x.size,), 0, tuple(widths[0] * count for count in x.counts))
    wanted = ArrayLayout((x.size,), 0, tuple(widths[1] * count for count in new.counts))
    moved = laid(Array(x.block.reshape(-1), flat, x.world), wanted)
    return Array(moved.block.reshape(new.block_shape(node)), new, x.world)


def take_rows(
    x: Array, axis: int, index: np.ndarray, counts: tuple[int, ...] | None = None
) -> Array:
    """Rows of the split axis in the order of an index; the result is shared out evenly.

    With `counts` each node gets so many of them. Each row that another node holds moves once to
    each place that needs it.
    """
    node, nodes = x.world.node, x.world.nodes
    counts = balanced(len(index), nodes) if counts is None else counts
    layout = ArrayLayout(replaced(x.shape, axis, len(index)), axis, counts)
    ends = np.array(x.layout.begins) + np.array(x.counts)  # nodes without rows own none
    owner = np.searchsorted(ends, index, side="right")
    sent = []
    for k in range(nodes):
        part = layout.slice_of(k)
        mine = index[part][owner[part] == node] - x.layout.begins[node]
        sent.append(jnp.take(x.block, jnp.asarray(mine), axis))
    own = owner[layout.slice_of(node)]
    sizes = [int((own == k).sum()) for k in range(nodes)]
    shapes = [replaced(x.layout.block_shape(node), axis, size) for size in sizes]
    rows = jnp.concatenate(x.world.trade(sent, shapes), axis)
    order = np.argsort(np.argsort(own, kind="stable"), kind="stable")
    return Array(jnp.take(rows, jnp.asarray(order), axis), layout, x.world)


def take_around(x: Array, axis: int, size: int, shift: int = 0) -> Array:
    """Rows of the split axis, around and around: row i of the result is row ``(i - shift) mod n``.

    The result has `size` rows, shared out evenly. Each row moves once to each node that lacks it.
    """
    node, nodes, n = x.world.node, x.world.nodes, max(x.shape[axis], 1)
    layout = ArrayLayout(replaced(x.shape, axis, size), axis, balanced(size, nodes))

    def wanted(k: int) -> tuple[slice, slice]:
        """The rows of a node, up to the last one and on from row 0, each of them once."""
        begin = (layout.begins[k] - shift) % n
        end = begin + min(layout.counts[k], n)
        return slice(begin, min(end, n)), slice(0, max(end - n, 0))

    mine = x.layout.slice_of(node)
    sent, got = [], []
    for k in range(nodes):
        ranges = [shifted(overlap(mine, part), mine.start) for part in wanted(k)]
        sent.append(jnp.concatenate([cut(x.block, axis, part) for part in ranges], axis))
        got.append([overlap(part, x.layout.slice_of(k)) for part in wanted(node)])
    sizes = [[part.stop - part.start for part in parts] for parts in got]
    shapes = [replaced(x.layout.block_shape(node), axis, sum(some)) for some in sizes]
    found = x.world.trade(sent, shapes)
    parts = list(zip(map(jnp.asarray, found), sizes, strict=True))
    rows = [cut(one, axis, slice(0, ahead)) for one, (ahead, _) in parts]
    rows += [cut(one, axis, slice(ahead, ahead + around)) for one, (ahead, around) in parts]
    block = jnp.concatenate(rows, axis)
    if (count := layout.counts[node]) > n:
        times = replaced((1,) * x.ndim, axis, -(-count // n))
        block = cut(jnp.tile(block, times), axis, slice(0, count))
    return Array(block, layout, x.world)


def cut(block: jax.Array, axis: int | None, part: slice) -> jax.Array:
    """Returns a range of an axis."""
    if axis is None or (part.start, part.stop) == (0, block.shape[axis]):
        return block
    return jax.lax.slice_in_dim(block, part.start, part.stop, axis=axis)
