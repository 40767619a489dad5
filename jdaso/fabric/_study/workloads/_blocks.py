"""The division of a cube of points over nodes, and the faces that neighbours exchange."""

from __future__ import annotations

import math
from dataclasses import dataclass

Triple = tuple[int, int, int]


def divided(nodes: int) -> Triple:
    """Returns three factors of a number of nodes, as equal as they can be, the largest first."""
    triples = [
        (nodes // (b * c), b, c)
        for b in range(1, nodes + 1)
        for c in range(1, b + 1)
        if nodes % (b * c) == 0 and nodes // (b * c) >= b
    ]
    return min(triples, key=sum)


@dataclass(frozen=True)
class Face:
    """A face of a block, with another node behind the face.

    Attributes:
        axis: 0, 1 or 2.
        side: -1 for the face at the beginning of the axis, 1 for that at its end.
        node: the node behind it.
    """

    axis: int
    side: int
    node: int

    @property
    def sends(self) -> int:
        """The tag of the message through this face, from here."""
        return 2 * self.axis + (self.side > 0)

    @property
    def receives(self) -> int:
        """The tag of the message through this face, to here."""
        return 2 * self.axis + (self.side < 0)


@dataclass(frozen=True)
class Block:
    """One node's part of the cube.

    Attributes:
        begin: its first point on each axis.
        shape: its points on each axis.
        faces: those with another node behind them; at the others the cube ends.
    """

    begin: Triple
    shape: Triple
    faces: tuple[Face, ...]


def block_of(node: int, nodes: int, points: Triple) -> Block:
    """Returns a node's block of a grid of this many points.

    Raises:
        ValueError: there are fewer points than nodes along an axis.
    """
    counts = divided(nodes)
    if any(n < count for n, count in zip(points, counts, strict=True)):
        raise ValueError(f"A grid of {points} has too few points for {counts} nodes. Take more.")
    place = (node // (counts[1] * counts[2]), node // counts[2] % counts[1], node % counts[2])
    ends = [
        (k * n // count, (k + 1) * n // count)
        for k, n, count in zip(place, points, counts, strict=True)
    ]
    strides = (counts[1] * counts[2], counts[2], 1)
    faces = [
        Face(axis, side, node + side * strides[axis])
        for axis in range(3)
        for side in (-1, 1)
        if 0 <= place[axis] + side < counts[axis]
    ]
    begin, shape = zip(*((first, last - first) for first, last in ends), strict=True)
    return Block(begin, shape, tuple(faces))


def points_of(grid: int, scaling: str, nodes: int) -> Triple:
    """Returns the points of the whole grid.

    Strong scaling: `grid` points on each axis, whatever the number of nodes. Weak scaling: on each
    node.
    """
    if scaling == "strong":
        return (grid, grid, grid)
    first, second, third = (grid * count for count in divided(nodes))
    return first, second, third


def bytes_of_faces(block: Block, itemsize: int = 4) -> int:
    """Returns the bytes that a node sends, and receives, for one step."""
    size = math.prod(block.shape)
    return sum(size // block.shape[face.axis] for face in block.faces) * itemsize
