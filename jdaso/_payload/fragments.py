"""Fragments: parts of the parameters, about equal in size, that nodes exchange in turn."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax.types import Leaves
from .explicit import placed_like, replicated
from .layout import Leaf
from .placement import Placement, spec

_SNAP = 0.0125
"""Share of a fragment's size by which each end may move: sizes then differ by at most 5 %."""


class Piece(NamedTuple):
    """A leaf, or a range of it.

    Attributes:
        leaf: its number among the exchanged leaves.
        axis: the axis along which the leaf is cut; None if the piece is the whole leaf.
        begin: the first index on that axis.
        end: the index after the last.
        placement: of the leaf, if the leaf is divided over a node's devices; each shard is cut.
    """

    leaf: int
    axis: int | None = None
    begin: int = 0
    end: int = 0
    placement: Placement | None = None

    def cut(self, x: Any) -> jax.Array:
        """The piece of an array that is shaped like the leaf (trailing axes may follow)."""
        if self.axis is None:
            return x
        if self.placement is None:
            return self._cut(replicated(x))
        return self._of_shards(self._cut, x)

    def put(self, x: Any, piece: jax.Array) -> jax.Array:
        """The array with its piece replaced."""
        if self.axis is None:
            return piece
        piece = piece.astype(jnp.result_type(x))
        if self.placement is None:
            return placed_like(self._put(replicated(x), piece), x)
        return placed_like(self._of_shards(self._put, x, piece), x)

    def _cut(self, x: jax.Array) -> jax.Array:
        assert self.axis is not None
        return jax.lax.slice_in_dim(x, self.begin, self.end, axis=self.axis)

    def _put(self, x: jax.Array, piece: jax.Array) -> jax.Array:
        assert self.axis is not None
        return jax.lax.dynamic_update_slice_in_dim(x, piece, self.begin, self.axis)

    def _of_shards(self, function: Callable[..., jax.Array], *arrays: Any) -> jax.Array:
        assert self.placement is not None
        (division,) = self.placement.divisions
        given = [division] * len(arrays)
        return self.placement.inside(function, given, spec(division))(*arrays)


@dataclasses.dataclass(frozen=True)
class Fragment:
    """One of the parts into which `deal` divides a tree.

    Attributes:
        pieces: in the order of the leaves.
        leaves: path, shape and dtype of each piece.
    """

    pieces: tuple[Piece, ...]
    leaves: tuple[Leaf, ...]

    def take(self, leaves: Sequence[Any]) -> Leaves:
        """The fragment's pieces of a tree's exchanged leaves."""
        return tuple(piece.cut(leaves[piece.leaf]) for piece in self.pieces)

    def put(self, leaves: Sequence[Any], pieces: Sequence[Any]) -> Leaves:
        """The leaves with the fragment's pieces replaced."""
        found = list(leaves)
        for piece, new in zip(self.pieces, pieces, strict=True):
            found[piece.leaf] = piece.put(found[piece.leaf], new)
        return tuple(found)


def deal(
    leaves: Sequence[Leaf], fragments: int, placement: Placement | None = None
) -> tuple[Fragment, ...]:
    """Divides leaves, in their order, into fragments whose sizes differ by at most 5 %.

    A fragment ends at the end of a leaf if one is near enough; otherwise the leaf is cut into
    ranges of its longest axis, and a leaf that is divided over devices shard by shard.

    Args:
        leaves: the leaves of a tree; those that are not exchanged are left out.
        fragments: F.
        placement: of divided leaves.

    Raises:
        ValueError: the leaves cannot be divided into that many fragments of about equal size.
    """
    exchanged = [leaf for leaf in leaves if leaf.exchanged]
    if fragments == 1:
        whole = tuple(Piece(number) for number in range(len(exchanged)))
        return (Fragment(whole, tuple(exchanged)),)
    each = sum(_numbers(leaf) for leaf in exchanged) / fragments
    found: list[list[Piece]] = [[] for _ in range(fragments)]
    number, at = 0, 0.0  # the fragment being filled, and the place in the vector of all leaves
    for k, leaf in enumerate(exchanged):
        begin, end = at, at + _numbers(leaf)
        axis, long, row = _longest(leaf)
        of_leaf = placement.of([leaf.division]) if placement and leaf.division else None
        first = 0
        while number < fragments - 1 and (number + 1) * each < end - _SNAP * each:
            wanted = (number + 1) * each
            near = not leaf.shape or wanted - begin <= _SNAP * each
            cut = 0 if near else round((wanted - begin) / row)
            if cut > first:
                found[number].append(Piece(k, axis, first, cut, of_leaf))
            first, number = max(first, cut), number + 1
        if first == 0:
            found[number].append(Piece(k))
        elif first < long:
            found[number].append(Piece(k, axis, first, long, of_leaf))
        if number < fragments - 1 and end >= (number + 1) * each - _SNAP * each:
            number += 1
        at = end
    dealt = tuple(Fragment(tuple(x), tuple(_of(exchanged[p.leaf], p) for p in x)) for x in found)
    sizes = [sum(map(_numbers, fragment.leaves)) for fragment in dealt]
    if not min(sizes) or max(sizes) > 1.05 * min(sizes):
        raise ValueError(
            f"{len(exchanged)} leaves of {sum(sizes)} numbers cannot be divided into "
            f"fragments={fragments} of about equal size: they would hold {min(sizes)} to "
            f"{max(sizes)} numbers, and may differ by 5 %. Use fewer fragments, or "
            'fragments="auto".'
        )
    return dealt


def deal_most(
    leaves: Sequence[Leaf], counts: Sequence[int], placement: Placement | None = None
) -> tuple[Fragment, ...]:
    """Divides leaves like `deal`, into the first of these counts that is possible."""
    *others, last = counts
    for count in others:
        with contextlib.suppress(ValueError):  # leaves that cannot be cut so finely
            return deal(leaves, count, placement)
    return deal(leaves, last, placement)


def _numbers(leaf: Leaf) -> int:
    """The count of float32 numbers in a leaf, over all its shards."""
    return leaf.size * leaf.shards


def _longest(leaf: Leaf) -> tuple[int, int, int]:
    """The longest axis, its length, and how many numbers each of its indices holds."""
    if not leaf.shape:
        return 0, 1, _numbers(leaf)
    long = max(leaf.shape)
    return leaf.shape.index(long), long, _numbers(leaf) // long


def _of(leaf: Leaf, piece: Piece) -> Leaf:
    """Path, shape and dtype of a piece."""
    if piece.axis is None:
        return leaf
    shape = list(leaf.shape)
    shape[piece.axis] = piece.end - piece.begin
    places = ", ".join([":"] * piece.axis + [f"{piece.begin}:{piece.end}"])
    each = " of each shard" if leaf.division and leaf.division[piece.axis] else ""
    return Leaf(f"{leaf.path}[{places}]{each}", tuple(shape), leaf.dtype, leaf.division)
