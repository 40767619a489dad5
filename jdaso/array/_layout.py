"""The layout of an array on nodes: the rows of each node. Pure functions of host integers."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Sequence
from functools import cached_property
from typing import SupportsIndex

Shape = tuple[int, ...]
Axes = SupportsIndex | Sequence[SupportsIndex]
"""One axis or several; or a shape. Also NumPy's integers."""


def balanced(size: int, nodes: int) -> tuple[int, ...]:
    """Returns how many of `size` rows each node holds: as equally as possible, the first ones more.

    >>> balanced(7, 3)
    (3, 2, 2)
    """
    least, more = divmod(size, nodes)
    return tuple(least + (node < more) for node in range(nodes))


@dataclasses.dataclass(frozen=True)
class ArrayLayout:
    """The layout of an array.

    Attributes:
        shape: of the whole array.
        split: the axis along which nodes hold blocks, in the order of nodes; None: each node holds
            all of it.
        counts: how many indices of the split axis each node holds; empty without a split.
    """

    shape: Shape
    split: int | None = None
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if (self.split is None) != (not self.counts):
            raise ValueError(f"A split needs counts: got split {self.split}, counts {self.counts}.")
        if self.split is not None and sum(self.counts) != self.shape[self.split]:
            raise ValueError(
                f"counts {self.counts} do not make {self.shape[self.split]} indices of axis "
                f"{self.split}, as the shape {self.shape} has. Give counts that sum up to it."
            )

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """The first index of each node on the split axis."""
        return (0, *itertools.accumulate(self.counts))[:-1]

    def block_shape(self, node: int) -> Shape:
        """Returns the shape of a node's block."""
        if self.split is None:
            return self.shape
        return replaced(self.shape, self.split, self.counts[node])

    def slice_of(self, node: int) -> slice:
        """Returns a node's indices of the split axis."""
        begin = self.begins[node]
        return slice(begin, begin + self.counts[node])

    @property
    def size(self) -> int:
        """The number of elements of the whole array."""
        return math.prod(self.shape)

    def over(self, axis: int | None, nodes: int) -> ArrayLayout:
        """Returns the balanced layout of the same array along an axis; None: on every node."""
        if axis is None:
            return ArrayLayout(self.shape)
        return ArrayLayout(self.shape, axis, balanced(self.shape[axis], nodes))


def replaced(shape: Sequence[int], axis: int, size: int) -> Shape:
    """Returns a shape with another size of one axis."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def counts_within(layout: ArrayLayout, begin: int, end: int) -> tuple[int, ...]:
    """Returns how many indices of a range of the split axis each node holds."""
    parts = (layout.slice_of(node) for node in range(len(layout.counts)))
    return tuple(max(0, min(part.stop, end) - max(part.start, begin)) for part in parts)


def axis_of(axis: SupportsIndex, ndim: int) -> int:
    """Returns an axis counted from the front.

    Raises:
        ValueError: there is no such axis.
    """
    number = operator.index(axis)
    if not -ndim <= number < ndim:
        raise ValueError(f"axis {axis} is out of range for an array of {ndim} dimensions.")
    return number % ndim


def axes_of(axis: Axes | None, ndim: int) -> tuple[int, ...]:
    """Returns axes counted from the front, in rising order; None: all.

    Raises:
        ValueError: there is no such axis, or one is given twice.
    """
    if axis is None:
        return tuple(range(ndim))
    given = list(axis) if isinstance(axis, Sequence) else [axis]
    found = tuple(sorted(axis_of(one, ndim) for one in given))
    if len(set(found)) != len(found):
        raise ValueError(f"axis {axis} names an axis twice. Name each once.")
    return found


def overlap(first: slice, second: slice) -> slice:
    """Returns the common part of two ranges; if there is none, an empty part of the first."""
    begin = min(max(first.start, second.start), first.stop)
    return slice(begin, max(begin, min(first.stop, second.stop)))


def shifted(part: slice, by: int) -> slice:
    """Returns a range, moved towards 0."""
    return slice(part.start - by, part.stop - by)
