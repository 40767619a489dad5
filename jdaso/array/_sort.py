"""Sorts along the split so that each number moves at most once, and rows end up shared out evenly.

Numbers are mapped to integers of the same order. All nodes search for the integers at which the
sorted array is cut into equal parts, digit by digit, with one small message per digit; of equal
numbers those of earlier nodes come first, so the order is stable. Then each part moves to its node.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array, method
from ._layout import ArrayLayout, axis_of, balanced
from ._move import resplit
from ._shape import flip
from ._world import World

_DIGIT_BITS = 4
"""A digit of more bits makes fewer messages of more counts."""


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


def _cuts(order: np.ndarray, begins: np.ndarray, world: World) -> np.ndarray:
    """Returns the places at which each node's sorted numbers are cut, ``[nodes, cuts]``.

    Args:
        order: of this node's numbers, sorted.
        begins: places in the whole sorted array at which to cut.
        world: the nodes.
    """
    bits, found = 8 * order.dtype.itemsize, np.zeros(len(begins), order.dtype)
    digits = np.arange(1 << _DIGIT_BITS).astype(order.dtype)
    for shift in range(bits - _DIGIT_BITS, -1, -_DIGIT_BITS) if len(begins) else ():
        shift = order.dtype.type(shift)
        rest = (order.dtype.type(1) << shift) - order.dtype.type(1)
        tops = found[:, None] | (digits << shift) | rest  # the largest number with each digit
        counts = world.numbers(np.searchsorted(order, tops.ravel(), "right")).sum(0)
        reached = counts.reshape(tops.shape) >= begins[:, None]
        found |= digits[reached.argmax(1)] << shift
    both = [np.searchsorted(order, found, side) for side in ("left", "right")]
    below, upto = np.split(world.numbers(np.concatenate(both)), 2, axis=1)
    ties, wanted = upto - below, begins - below.sum(0)
    earlier = np.cumsum(ties, 0) - ties
    return below + np.clip(wanted - earlier, 0, ties)


class _Moves:
    """The parts of a sorted line that each node gets.

    Args:
        x: the line.
        order: integers in the order of this node's part of the line, sorted.
    """

    def __init__(self, x: Array, order: np.ndarray):
        nodes, self._world = x.world.nodes, x.world
        self.layout = ArrayLayout(x.shape, 0, balanced(x.size, nodes))
        cuts = _cuts(order, np.array(self.layout.begins[1:], np.int64), x.world)
        ends = np.concatenate([np.zeros((nodes, 1), int), cuts, np.array(x.counts)[:, None]], 1)
        self._cuts, self._sizes = cuts[x.world.node], np.diff(ends, axis=1)[:, x.world.node]

    def moved(self, column: np.ndarray) -> np.ndarray:
        """Returns this node's parts of a column, received from all nodes, in the nodes' order."""
        sent = [jnp.asarray(part) for part in np.split(column, self._cuts)]
        parts = self._world.trade(sent, [(int(size),) for size in self._sizes])
        return np.concatenate([np.asarray(part) for part in parts])


def sorted_line(x: Array) -> Array:
    """Returns a sorted array of one axis, split."""
    if x.dtype.kind not in "biuf":  # NumPy sorts others slowly, or not at all
        return sorted_with_places(x)[0]
    numbers = np.sort(np.asarray(x.block))
    moves = _Moves(x, order_of(numbers))
    found = np.sort(moves.moved(numbers), kind="stable")  # fast with few sorted parts
    return Array(jnp.asarray(found), moves.layout, x.world)


def sorted_with_places(x: Array) -> tuple[Array, Array]:
    """Returns a sorted array of one axis, split, and the places that its numbers had."""
    numbers = np.asarray(x.block)
    order = order_of(numbers)
    by = np.argsort(order, kind="stable")
    moves = _Moves(x, order[by])
    found = moves.moved(numbers[by]), moves.moved(x.layout.begins[x.world.node] + by)
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
def sort(x: Any, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """The elements in ascending order along an axis; equal ones keep their order, NaN come last.

    Moves nothing along another axis than the split; along the split of one axis each number at most
    once, of several axes what two `resplit` move.
    """
    if descending:
        return flip(_along(x, axis, places=False), axis=axis)
    return _along(x, axis, places=False)


@method("argsort")
def argsort(x: Any, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """The indices that sort an array along an axis; see `sort`."""
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
