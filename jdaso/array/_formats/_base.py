"""The interface of a format, and formats of which slices can be read."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from ..._jax.ffi import aligned
from .._array import Array
from .._layout import ArrayLayout, axis_of
from .._move import resplit
from .._together import together
from .._whole_numbers import require_range
from .._world import world

PIECE_BYTES = 1 << 24
"""The most that is read at a time, besides the block itself."""


class Choice(NamedTuple):
    """The choices of a reader.

    Attributes:
        dataset: the name of the array in its file; None: the only one.
        split: the axis to divide over nodes; None: each node reads all of it.
        dtype: the type; None: the file's.
        delimiter: between the numbers of a line of text.
        header: lines before the first row of text.
        rows: the first row and the one behind the last; those that a file lacks are left out.
    """

    dataset: str | None
    split: int | None
    dtype: Any
    delimiter: str
    header: int
    rows: tuple[int, int | None] = (0, None)

    def range_of(self, size: int) -> range:
        """Returns the rows to read of a file with so many."""
        return range(size)[slice(*self.rows)]


@runtime_checkable
class Format(Protocol):
    """A format of files. All nodes call each method together."""

    def load(self, path: Path, choice: Choice) -> Array:
        """Reads an array; each node its part."""
        ...

    def save(self, x: Array, path: Path, dataset: str) -> None:
        """Writes an array, replacing the file; each node its part."""
        ...

    def names(self, path: Path) -> list[str]:
        """Returns the names of the arrays in a file; none where a file holds one without a name."""
        ...


class Sliced:
    """A format of which slices can be read."""

    def opened(self, path: Path, dataset: str | None) -> AbstractContextManager[Any]:
        """Opens a file's array, which has a shape, a dtype and slices."""
        raise NotImplementedError

    def names(self, path: Path) -> list[str]:
        """Returns the names of the arrays in a file; none where a file holds one without a name."""
        return []

    def load(self, path: Path, choice: Choice) -> Array:
        """Reads an array; each node its part."""
        at, split = world(), choice.split
        with together(at, f"read {path.name}"), self.opened(path, choice.dataset) as stored:
            stored_shape = tuple(stored.shape)
            rows = choice.range_of(stored_shape[0]) if stored_shape else range(1)
            shape = (len(rows), *stored_shape[1:]) if stored_shape else ()
            axis = None if split is None or not shape else axis_of(split, len(shape))
            layout = ArrayLayout(shape).over(axis, at.nodes)
            where = [slice(0, n) for n in shape]
            if axis is not None:
                where[axis] = layout.slice_of(at.node)
            if shape:
                where[0] = slice(rows.start + where[0].start, rows.start + where[0].stop)
            block = read(stored, where, choice.dtype)
        return Array(block, layout, at)


def read(stored: Any, where: list[slice], dtype: Any) -> jax.Array:
    """Reads a part of a file's array in pieces, each converted at once to its final type.

    So a node needs no more memory than its block and a piece, even where JAX halves the numbers'
    precision.
    """
    shape = tuple(part.stop - part.start for part in where)
    wanted = np.dtype(stored.dtype if dtype is None else dtype).newbyteorder("=")
    kind = np.dtype(jax.dtypes.canonicalize_dtype(wanted))
    narrowed = dtype is None or kind != wanted  # not where the caller asks for fewer bits
    found = aligned.zeros(shape, kind)
    if not shape:
        if narrowed:
            require_range(np.asarray(stored[()]), kind)
        found[...] = stored[()]
        return jax.device_put(found)
    row_bytes = stored.dtype.itemsize * max(1, found.size // max(1, shape[0]))
    step = max(1, PIECE_BYTES // row_bytes)
    for begin in range(0, shape[0], step):
        end = min(begin + step, shape[0])
        rows = slice(where[0].start + begin, where[0].start + end)
        piece = stored[(rows, *where[1:])]
        if narrowed:
            require_range(piece, kind)
        found[begin:end] = piece
    return jax.device_put(found)


class Placed(Sliced):
    """A format whose rows are contiguous bytes, so that each node can write its own."""

    def make(self, path: Path, dataset: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Makes a file with room for all rows."""
        raise NotImplementedError

    def first_byte(self, path: Path, dataset: str) -> int:
        """Returns the place of the array in its file."""
        raise NotImplementedError

    def save(self, x: Array, path: Path, dataset: str) -> None:
        """Writes an array, replacing the file; all nodes write their rows at once.

        Uses plain writes: nodes that share a page of a mapped file could overwrite each other's
        bytes on a network file system.
        """
        if x.split not in (None, 0):
            x = resplit(x, 0)  # rows of a file are contiguous
        node = x.world.node
        with together(x.world, f"make {path.name}"):
            if node == 0:
                self.make(path, dataset, x.shape, np.dtype(x.dtype))
        with together(x.world, f"write {path.name}"):
            if x.size and (x.split == 0 or node == 0):
                row = x.layout.begins[node] if x.split == 0 else 0
                width = x.nbytes // (x.shape[0] if x.shape else 1)
                with path.open("r+b") as file:
                    file.seek(self.first_byte(path, dataset) + row * width)
                    file.write(np.ascontiguousarray(x.block).data)
