"""Sorts along the split so that each number moves at most once, and rows end up shared out evenly.

Numbers are mapped to integers of the same order. All nodes search for the integers at which the
sorted array is cut into equal parts, digit by digit, with one small reduction per digit; of equal
numbers those of earlier nodes come first, so the order is stable. Then each part moves to its node.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.ffi import aligned
from ._array import Array, as_array, method
from ._layout import ArrayLayout, axis_of, balanced
from ._move import resplit
from ._reduce import index_type
from ._shape import flip, ravel
from ._world import World

_MOST_COUNTS = 512
"""Counts of a message. A digit of more bits makes fewer messages of more counts."""


def order_of(numbers: np.ndarray) -> np.ndarray:
    """Returns unsigned integers in the same order; NaN is the largest, -0.0 equals 0.0."""
    kind, bits = numbers.dtype.kind, 8 * numbers.dtype.itemsize
    unsigned = np.dtype(f"u{max(numbers.dtype.itemsize, 1)}")
    if kind in "bu":
        return numbers.astype(unsigned)
    top = unsigned.type(1 << (bits - 1))
    if kind == "i":
        return numbers.view(unsigned) ^ top
    plain = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype), numbers + 0).view(unsigned)
    return np.where(plain & top, ~plain, plain | top)


def numbers_of(order: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns the numbers of integers: undoes `order_of`; -inf for those below that of -inf."""
    if dtype.kind in "bu":
        return order.astype(dtype)
    top = order.dtype.type(1 << (8 * order.dtype.itemsize - 1))
    if dtype.kind == "i":
        return (order ^ top).view(dtype)
    order = np.maximum(order, order_of(np.array([-np.inf], dtype)))
    return np.where(order & top, order ^ top, ~order).view(dtype)


def _cuts(line: np.ndarray, begins: np.ndarray, world: World) -> np.ndarray:
    """Returns the places at which each node's sorted numbers are cut, ``[nodes, cuts]``.

    Args:
        line: this node's numbers, sorted.
        begins: places in the whole sorted array at which to cut.
        world: the nodes.
    """
    order = np.dtype(f"u{line.dtype.itemsize}").type
    bits, found = 8 * line.dtype.itemsize, np.zeros(len(begins), order)
    digit_bits = 8 if len(begins) << 8 <= _MOST_COUNTS else 4
    digits = np.arange(1 << digit_bits).astype(order)
    for shift in map(order, range(bits - digit_bits, -1, -digit_bits) if len(begins) else ()):
        rest = (order(1) << shift) - order(1)
        tops = found[:, None] | (digits << shift) | rest  # the largest number with each digit
        not_above = np.searchsorted(line, numbers_of(tops.ravel(), line.dtype), "right")
        reached = world.sums(not_above).reshape(tops.shape) >= begins[:, None]
        found |= digits[reached.argmax(1)] << shift
    numbers = numbers_of(found, line.dtype)
    both = [np.searchsorted(line, numbers, side) for side in ("left", "right")]
    below, upto = np.split(world.numbers(np.concatenate(both)), 2, axis=1)
    ties, wanted = upto - below, begins - below.sum(0)
    earlier = np.cumsum(ties, 0) - ties
    return below + np.clip(wanted - earlier, 0, ties)


class _Moves:
    """The parts of a sorted line that each node gets.

    Args:
        x: the line.
        numbers: this node's part of the line, or integers in its order; sorted.
    """

    def __init__(self, x: Array, numbers: np.ndarray):
        nodes, self._world = x.world.nodes, x.world
        self.layout = ArrayLayout(x.shape, 0, balanced(x.size, nodes))
        cuts = _cuts(numbers, np.array(self.layout.begins[1:], np.int64), x.world)
        ends = np.concatenate([np.zeros((nodes, 1), int), cuts, np.array(x.counts)[:, None]], 1)
        self._cuts, self._sizes = cuts[x.world.node], np.diff(ends, axis=1)[:, x.world.node]

    def moved(self, column: np.ndarray) -> np.ndarray:
        """Returns this node's parts of a column, received from all nodes, in the nodes' order."""
        sent, shapes = np.split(column, self._cuts), [(int(size),) for size in self._sizes]
        found = aligned.empty(self.layout.block_shape(self._world.node), column.dtype)
        return np.concatenate(self._world.trade(sent, shapes), out=found)


def sorted_line(x: Array) -> Array:
    """Returns a sorted array of one axis, split."""
    if x.dtype.kind not in "biuf":  # NumPy sorts others slowly, or not at all
        return sorted_with_places(x)[0]
    numbers = np.sort(np.asarray(x.block))
    moves = _Moves(x, numbers)
    found = moves.moved(numbers)
    found.sort(kind="stable")  # fast with few sorted parts
    return Array(jax.device_put(found), moves.layout, x.world)


def _sorted_by_place(order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns sorted integers, and the places that they had; equal ones keep their order.

    An integer of 32 bits and its place are one of 64 bits: NumPy sorts these up to three times as
    fast as it finds the places of a stable sort.
    """
    if order.itemsize > 4 or len(order) >> 32:
        by = np.argsort(order, kind="stable")
        return order[by], by
    both = order.astype(np.uint64)
    both <<= np.uint64(32)
    both |= np.arange(len(order), dtype=np.uint32)
    both.sort()
    found = (both >> np.uint64(32)).astype(order.dtype)
    both &= np.uint64(0xFFFFFFFF)
    return found, both.view(np.int64)


def sorted_with_places(x: Array) -> tuple[Array, Array]:
    """Returns a sorted array of one axis, split, and the places that its numbers had."""
    numbers = np.asarray(x.block)
    order, by = _sorted_by_place(order_of(numbers))
    moves = _Moves(x, order)
    places = (x.layout.begins[x.world.node] + by).astype(index_type(x.size))
    found = moves.moved(numbers[by]), moves.moved(places)
    by = np.argsort(order_of(found[0]), kind="stable")
    values, places = (jnp.asarray(column[by]) for column in found)
    return Array(values, moves.layout, x.world), Array(places, moves.layout, x.world)


def _along(x: Any, axis: int, *, places: bool) -> Array:
    x = as_array(x)
    along = axis_of(axis, x.ndim)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"sort of {x.dtype}: complex numbers have no order. Take abs or real.")
    if x.split == along:
        if x.ndim == 1:
            return sorted_with_places(x)[1] if places else sorted_line(x)
        other = max((k for k in range(x.ndim) if k != along), key=lambda k: x.shape[k])
        return resplit(_along(resplit(x, other), along, places=places), along)
    function = jnp.argsort if places else jnp.sort
    return Array(function(x.block, axis=along, stable=True), x.layout, x.world)


@method("sort")
def sort(
    x: Any,
    axis: int | None = -1,
    *,
    descending: bool = False,
    stable: bool = True,
    kind: str | None = None,
) -> Array:
    """The elements in ascending order along an axis; equal ones keep their order, NaN come last.

    Args:
        x: the array.
        axis: the axis; None: of the flat array.
        descending: whether the largest come first.
        stable: makes no difference: equal elements keep their order.
        kind: makes no difference.

    Returns a new array, also as a method: arrays are immutable.

    Moves nothing along another axis than the split; along the split of one axis each number at most
    once, of several axes what two `resplit` move.
    """
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    if descending:
        return flip(_along(x, axis, places=False), axis=axis)
    return _along(x, axis, places=False)


@method("argsort")
def argsort(
    x: Any,
    axis: int | None = -1,
    *,
    descending: bool = False,
    stable: bool = True,
    kind: str | None = None,
) -> Array:
    """The indices that sort an array along an axis; see `sort`."""
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    if descending:
        x = as_array(x)
        last = x.shape[axis_of(axis, x.ndim)] - 1
        return flip(last - _along(flip(x, axis=axis), axis, places=True), axis=axis)
    return _along(x, axis, places=True)


def neighbours(x: Array) -> np.ndarray:
    """Flags own numbers of a sorted line that differ from the one before; NaN always does."""
    numbers = np.asarray(x.block)
    order = order_of(numbers)
    last = int(order[-1].astype(np.int64)) if len(order) else 0
    lasts = x.world.numbers(np.array([len(order), last], np.int64))
    before = next((int(last) for n, last in lasts[: x.world.node][::-1] if n), None)
    differs = np.ones(len(order), bool)
    differs[1:] = order[1:] != order[:-1]
    if len(order):
        differs[0] = before is None or before != int(order[0].astype(np.int64))
    return differs | np.isnan(numbers) if jnp.issubdtype(x.dtype, jnp.floating) else differs
