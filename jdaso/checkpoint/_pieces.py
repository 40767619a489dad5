"""Pieces of leaves: the parts of an array that a rank saves, and the way back in any layout.

A rank saves the shards that its devices have; a shard that several ranks have is saved by only one
of them. A rank that restores copies the overlaps of the saved pieces with the shards that it needs,
so that no rank ever holds the whole model.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.world import spans_processes
from ._files import SavedLeaf


class SavedPiece(NamedTuple):
    """A part of a leaf.

    Attributes:
        begin: where it begins in the leaf.
        data: its numbers.
    """

    begin: tuple[int, ...]
    data: np.ndarray


def leaf_of_pieces(leaf: SavedLeaf, array: jax.Array, number: int) -> SavedLeaf:
    """Returns the leaf of the pieces that this rank saves of an array.

    Args:
        leaf: the whole leaf.
        array: on devices of several ranks.
        number: of the leaf, so that ranks with equal shards take turns.
    """
    begins = tuple(sorted(_owned(array, number)))
    shape = (len(begins), *array.sharding.shard_shape(array.shape))
    return dataclasses.replace(
        leaf, shape=shape, common=False, whole=tuple(array.shape), begins=begins
    )


def pieces_of(leaf: SavedLeaf, array: jax.Array) -> np.ndarray:
    """Returns a leaf's pieces, one after another."""
    here = {begin_of(shard.index): shard.data for shard in array.addressable_shards}
    found = np.empty(leaf.shape, array.dtype)
    for k, begin in enumerate(leaf.begins):
        found[k] = here[begin]
    return found


def saved_pieces(leaf: SavedLeaf, array: np.ndarray) -> Iterator[SavedPiece]:
    """Yields the pieces in a saved array."""
    if leaf.whole is None:
        yield SavedPiece((0,) * array.ndim, array)
    elif leaf.shapes:
        yield from pieces_in(array, leaf.begins, leaf.shapes)
    else:
        yield from (SavedPiece(x, np.asarray(y)) for x, y in zip(leaf.begins, array, strict=True))


def pieces_in(
    flat: np.ndarray, begins: Sequence[tuple[int, ...]], shapes: Sequence[tuple[int, ...]]
) -> Iterator[SavedPiece]:
    """Yields the pieces in a flat array, one after another."""
    at = 0
    for begin, shape in zip(begins, shapes, strict=True):
        end = at + math.prod(shape)
        yield SavedPiece(begin, flat[at:end].reshape(shape))
        at = end


def places_of(leaf: SavedLeaf) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Returns where the pieces of a saved leaf begin, and their shapes."""
    if leaf.whole is None:
        return [((0,) * len(leaf.shape), leaf.shape)]
    shapes = leaf.shapes or itertools.repeat(leaf.shape[1:], len(leaf.begins))
    return list(zip(leaf.begins, shapes, strict=True))


def wanted_of(array: Any, dtype: Any) -> list[SavedPiece]:
    """Returns room for the parts of an array that this rank needs: its shards, or all of it."""
    if not spans_processes(array):
        shape = np.shape(array)
        return [SavedPiece((0,) * len(shape), np.zeros(shape, dtype))]
    shape = array.sharding.shard_shape(array.shape)
    begins = sorted({begin_of(shard.index) for shard in array.addressable_shards})
    return [SavedPiece(begin, np.zeros(shape, dtype)) for begin in begins]


def overlap(begin: tuple[int, ...], shape: tuple[int, ...], other: SavedPiece) -> int:
    """Returns how many numbers a piece of a leaf has in common with another one."""
    lengths = (max(high - low, 0) for low, high in _common(begin, shape, other))
    return math.prod(lengths)


def copy_overlap(source: SavedPiece, target: SavedPiece) -> int:
    """Copies what two pieces have in common; returns how many numbers that were."""
    ranges = _common(source.begin, source.data.shape, target)
    if any(low >= high for low, high in ranges):
        return 0

    def view(piece: SavedPiece) -> np.ndarray:
        pairs = zip(piece.begin, ranges, strict=True)
        return piece.data[tuple(slice(low - at, high - at) for at, (low, high) in pairs) or ...]

    view(target)[...] = view(source)
    return math.prod(high - low for low, high in ranges)


def assembled(array: Any, pieces: Sequence[SavedPiece]) -> Any:
    """Returns an array like another on several ranks, from the shards that this rank has."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        words = assembled(jax.random.key_data(array), pieces)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(array))
    of_begin = {piece.begin: piece.data for piece in pieces}
    parts = [
        jax.device_put(of_begin[begin_of(shard.index)], shard.device)
        for shard in array.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def begin_of(index: tuple[slice, ...]) -> tuple[int, ...]:
    """Returns where a shard begins in its array."""
    return tuple(x.start or 0 for x in index)


def _owned(array: jax.Array, number: int) -> set[tuple[int, ...]]:
    """Returns where the shards begin that this rank saves."""
    ranks: dict[tuple[int, ...], set[int]] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        ranks.setdefault(begin_of(index), set()).add(device.process_index)
    shared = enumerate(sorted(ranks.items()), start=number)
    turns = ((begin, sorted(those)[k % len(those)]) for k, (begin, those) in shared)
    return {begin for begin, rank in turns if rank == jax.process_index()}


def _common(
    begin: tuple[int, ...], shape: tuple[int, ...], other: SavedPiece
) -> list[tuple[int, int]]:
    """Returns the range along each axis that two pieces have in common."""
    return [
        (max(a, b), min(a + n, b + m))
        for a, n, b, m in zip(begin, shape, other.begin, other.data.shape, strict=True)
    ]
