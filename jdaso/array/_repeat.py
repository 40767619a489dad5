"""Arrays repeated along axes, and taken apart along one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array, method
from ._index import getitem
from ._layout import ArrayLayout, axis_of, replaced
from ._move import resplit, take_around
from ._shape import broadcast_to, expand_dims, ravel, reshape


@method("repeat")
def repeat(x: Any, repeats: Any, axis: int | None = None) -> Array:
    """Each element several times in a row along an axis (None: of the flat array).

    Args:
        x: the array.
        repeats: the number of times, or one for each index; the same on all nodes.
        axis: the axis.

    Moves nothing: along the split, nodes may then hold different numbers of rows.

    Raises:
        ValueError: there are not as many numbers as indices, or one is negative.
    """
    x = as_array(x)
    x, along = (ravel(x), 0) if axis is None else (x, axis_of(axis, x.ndim))
    size, given = x.shape[along], np.asarray(repeats)
    if given.dtype.kind not in "iub" and given.size:
        raise TypeError(f"repeats must be whole numbers, got {given.dtype}: {repeats}.")
    if given.size not in (1, size) or (given < 0).any() or given.ndim > 1:
        raise ValueError(
            f"repeats must be one number or {size}, none of them negative, got {repeats}."
        )
    if given.size == 1:
        return _each_repeated(x, along, int(given.reshape(-1)[0]))
    times = given.astype(int)
    shape = replaced(x.shape, along, int(times.sum()))
    if x.split != along:
        block = jnp.repeat(x.block, times, along, total_repeat_length=shape[along])
        return Array(block, ArrayLayout(shape, x.split, x.counts), x.world)
    parts = [times[x.layout.slice_of(node)] for node in range(x.world.nodes)]
    counts = tuple(int(part.sum()) for part in parts)
    node = x.world.node
    block = jnp.repeat(x.block, parts[node], along, total_repeat_length=counts[node])
    return Array(block, ArrayLayout(shape, along, counts), x.world)


def _each_repeated(x: Array, axis: int, times: int) -> Array:
    shape, counts = replaced(x.shape, axis, x.shape[axis] * times), x.counts
    counts = tuple(times * count for count in counts) if x.split == axis else counts
    return Array(jnp.repeat(x.block, times, axis), ArrayLayout(shape, x.split, counts), x.world)


@method("tile")
def tile(x: Any, repetitions: Sequence[int], /) -> Array:
    """The whole array, repeated along each axis.

    Args:
        x: the array.
        repetitions: the number of times, for each of the last axes; more make new axes in front.

    Moves nothing, or along the split each row once to each node that lacks it.
    """
    x, times = as_array(x), tuple(int(one) for one in np.atleast_1d(repetitions))
    if min(times, default=0) < 0:
        raise ValueError(f"repetitions must not be negative, got {times}.")
    for _ in range(len(times) - x.ndim):
        x = expand_dims(x, axis=0)
    times = (1,) * (x.ndim - len(times)) + times
    shape = tuple(n * one for n, one in zip(x.shape, times, strict=True))
    if x.split is None:
        return Array(jnp.tile(x.block, times), ArrayLayout(shape), x.world)
    axis = x.split
    block = jnp.tile(x.block, replaced(times, axis, 1))
    wide = Array(block, ArrayLayout(replaced(shape, axis, x.shape[axis]), axis, x.counts), x.world)
    if times[axis] == 1:
        return wide
    return take_around(wide, axis, shape[axis])


def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinates of a grid, from those of each axis.

    Args:
        arrays: the coordinates, each of one axis.
        indexing: "xy": the first array runs along the second axis, the second along the first;
            "ij": each along its own.

    Moves nothing: a result is split along the axis of its array.

    Raises:
        ValueError: an array has more axes, or there is no such indexing.
    """
    lines = [as_array(x) for x in arrays]
    if indexing not in ("xy", "ij") or any(x.ndim > 1 for x in lines):
        shapes = [x.shape for x in lines]
        raise ValueError(
            f"meshgrid takes arrays of one axis and 'xy' or 'ij', got {shapes}, {indexing!r}."
        )
    order = list(range(len(lines)))
    if indexing == "xy":
        order[:2] = order[:2][::-1]
    shape = tuple(lines[k].size for k in order)
    found = []
    for k, x in enumerate(lines):
        x = x if x.ndim else reshape(x, (1,))
        for axis in range(len(order)):
            x = x if axis == order[k] else expand_dims(x, axis=axis)
        found.append(broadcast_to(x, shape))
    return tuple(found)


def broadcast_arrays(*arrays: Any) -> tuple[Array, ...]:
    """Arrays repeated to one shape; see `broadcast_to`.

    Raises:
        ValueError: the shapes do not fit.
    """
    given = [as_array(x) for x in arrays]
    shape = np.broadcast_shapes(*(x.shape for x in given))
    return tuple(broadcast_to(x, shape) for x in given)


@method("unstack")
def unstack(x: Any, axis: int = 0) -> tuple[Array, ...]:
    """The parts of an array along an axis, without that axis.

    Moves nothing, or along the split what `resplit` to the longest other axis moves.
    """
    x = as_array(x)
    along = axis_of(axis, x.ndim)
    if x.split == along:
        x = resplit(x, longest_beside(x, along))
    return tuple(getitem(x, (*(slice(None),) * along, k)) for k in range(x.shape[along]))


def longest_beside(x: Array, axis: int) -> int | None:
    """Returns the longest of the other axes; None: there is none."""
    return max((k for k in range(x.ndim) if k != axis), key=lambda k: x.shape[k], default=None)
