"""Reads from the files of one rank what they have of some pieces, a few leaves at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ._arrays import read_arrays
from ._files import COMMON, Manifest, SavedLeaf, is_small, nbytes, node_folder
from ._pieces import SavedPiece, copy_overlap, overlap, places_of, saved_pieces

_BYTES_AT_ONCE = 64 * 2**20


class Wanted(NamedTuple):
    """Pieces of a leaf, and a saved array that may have numbers of them."""

    saved: SavedLeaf
    rooms: Sequence[SavedPiece]

    @property
    def common(self) -> int:
        """The count of the pieces' numbers that the array has."""
        places = places_of(self.saved)
        return sum(overlap(*place, room) for place in places for room in self.rooms)


def read_overlaps(folder: Path, manifest: Manifest, wanted: Sequence[Wanted]) -> list[int]:
    """Fills pieces with what one rank has saved of them.

    Args:
        folder: of the checkpoint.
        manifest: of the rank.
        wanted: the pieces to read, of arrays in this manifest.

    Returns:
        For each array, the count of numbers that were copied.

    Raises:
        DamagedError: a file is missing or damaged.
    """
    copied = [0] * len(wanted)
    for name, common in ((COMMON, True), (node_folder(manifest.node), False)):
        of_part = [leaf for leaf in manifest.leaves if leaf.common == common]
        mine = [k for k, x in enumerate(wanted) if x.saved.common == common and x.common]
        manifest.verify(folder, (name,), [wanted[k].saved for k in mine])
        for some in _in_turn(mine, wanted):
            leaves = [wanted[k].saved for k in some]
            arrays = read_arrays(folder, name, of_part, leaves, manifest.small)
            for k in some:
                saved, rooms = wanted[k]
                for piece in saved_pieces(saved, arrays[saved.file]):
                    copied[k] += sum(copy_overlap(piece, room) for room in rooms)
    return copied


def _in_turn(numbers: Sequence[int], wanted: Sequence[Wanted]) -> Iterator[list[int]]:
    """Yields what is read at once: all small arrays, and then large ones up to a limit."""
    small = [k for k in numbers if is_small(wanted[k].saved)]
    if small:
        yield small
    some, size = [], 0
    for k in numbers:
        if is_small(wanted[k].saved):
            continue
        if some and size + nbytes(wanted[k].saved) > _BYTES_AT_ONCE:
            yield some
            some, size = [], 0
        some.append(k)
        size += nbytes(wanted[k].saved)
    if some:
        yield some
