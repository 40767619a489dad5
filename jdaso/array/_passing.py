"""Blocks that pass from node to node, in a ring, while they are used; small ones are gathered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
from jax.core import Tracer

from ._array import Array
from ._in_place import is_one_piece, pieces_of
from ._move import cut, resplit


class Passed(NamedTuple):
    """Rows of a node's block that pass by.

    Attributes:
        owner: the node whose block they are part of.
        begin: the first row, counted in that block.
        rows: the numbers.
    """

    owner: int
    begin: int
    rows: jax.Array


def passing(x: Array) -> Iterator[Passed]:
    """Yields the rows of all nodes, at most 8 MB at a time; the next ones are in flight meanwhile.

    They begin with the node's own. If blocks are larger, all nodes' first rows pass, then the next.
    In a program that is traced each block passes at once.
    """
    node, nodes = x.world.node, x.world.nodes
    shapes = [x.layout.block_shape(k) for k in range(nodes)]
    width = max(math.prod(shape[1:]) for shape in shapes)
    most, itemsize = max(shape[0] for shape in shapes), x.dtype.itemsize
    for part in pieces_of(x.block, rows=most, width=width, itemsize=itemsize):
        parts = [slice(min(part.start, n), min(part.stop, n)) for n, *_ in shapes]
        rows = cut(x.block, 0, parts[node])
        for k in range(nodes):
            owner, following = (node + k) % nodes, (node + k + 1) % nodes
            wait = None
            if k < nodes - 1:
                size = parts[following].stop - parts[following].start
                wait = x.world.start_shift(rows, (size, *shapes[following][1:]))
            yield Passed(owner, parts[owner].start, rows)
            if wait is not None:
                rows = wait()


def whole_if_small(x: Array) -> Array:
    """Returns the array whole on each node if it takes at most 8 MB, else as it is.

    Each node sends what it would pass on in a ring, in one message, and computes once. An array
    that is traced would be gathered by a sum, of twice the bytes, so its blocks pass; a constant of
    a program is gathered while the program is traced.
    """
    if isinstance(x.block, Tracer) or not is_one_piece(x.nbytes):
        return x
    return resplit(x, None)
