"""Spans: the place that each leaf of a layout has among the numbers of the parameters.

A layout's leaf may be a leaf of the parameters, a shard of it, a fragment of a shard, or one of
several equal parts of such a fragment. Its numbers are boxes of the leaf, one after another, so
that numbers saved in one layout can be found in any other.

    a 4 x 6 leaf; a device holds columns 3 to 5, and exchanges numbers 2 to 9 of them:

    . . . . . 2      box (0, 5), 1 x 1
    . . . 3 4 5      box (1, 3), 2 x 3
    . . . 6 7 8
    . . . 9 . .      box (3, 3), 1 x 1
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .fragments import Fragment
from .layout import Leaf
from .placement import Placement
from .whole import part_of


class Box(NamedTuple):
    """A range along each axis of a leaf: its begin and its shape."""

    begin: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The count of numbers."""
        return math.prod(self.shape)


class Span(NamedTuple):
    """The numbers of one leaf of a layout.

    Attributes:
        path: the path of the parameters' leaf.
        whole: that leaf's shape, in float32 numbers.
        boxes: the numbers' boxes, in their order; the layout's leaf may end with zeros after them.
    """

    path: str
    whole: tuple[int, ...]
    boxes: tuple[Box, ...]

    @property
    def size(self) -> int:
        """The count of numbers."""
        return sum(box.size for box in self.boxes)


def spans_of(
    fragment: Fragment, leaves: Sequence[Leaf], placement: Placement | None, *, cuts_copies: bool
) -> tuple[Span, ...]:
    """The spans of a fragment's layout on this rank, in the layout's order.

    Args:
        fragment: the fragment.
        leaves: the exchanged leaves of the parameters, with their divisions.
        placement: their placement; None if none is divided.
        cuts_copies: whether devices that hold copies of a shard exchange a part each.
    """
    found = []
    for piece, cut in zip(fragment.pieces, fragment.leaves, strict=True):
        leaf = leaves[piece.leaf]
        axes = placement.copies(leaf.division) if placement is not None and cuts_copies else ()
        parts = math.prod(size for _, size in axes)
        length = -(-cut.size // parts)
        for number in _here(placement, (*leaf.division, axes)):
            shard, part = divmod(number, parts)
            begin = [at.start for at in part_of(leaf, shard)] or [0] * len(leaf.shape)
            if piece.axis is not None:
                begin[piece.axis] += piece.begin
            box = Box((*begin, *[0] * (len(cut.reals) - len(begin))), cut.reals)
            boxes = tuple(boxes_of(box, part * length, (part + 1) * length))
            whole = (*leaf.whole, *leaf.reals[len(leaf.shape) :])
            found.append(Span(leaf.path, whole, boxes))
    return tuple(found)


def boxes_of(box: Box, first: int, end: int) -> Iterator[Box]:
    """Yields the boxes that make up a range of a box's numbers, in C order.

    Args:
        box: the box.
        first: the first number.
        end: the number after the last; may be beyond the box.
    """
    first, end = max(first, 0), min(end, box.size)
    if first >= end:
        return
    if end - first == box.size:
        yield box
        return
    begin, (rows, *row) = box.begin, box.shape
    each = box.size // rows
    while first < end:
        k, inside = divmod(first, each)
        whole = (end - first) // each if inside == 0 else 0
        if whole:
            yield Box((begin[0] + k, *begin[1:]), (whole, *row))
            first += whole * each
            continue
        stop = min(end - k * each, each)
        for part in boxes_of(Box(begin[1:], tuple(row)), inside, stop):
            yield Box((begin[0] + k, *part.begin), (1, *part.shape))
        first = k * each + stop


def _here(placement: Placement | None, division: tuple) -> list[int]:
    """The numbers of the different parts that this rank's devices have, in order."""
    if placement is None:
        return [0]
    return sorted({placement.shard(division, device) for device in placement.here})
