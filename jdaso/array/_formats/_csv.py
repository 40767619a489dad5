"""Text with a row of numbers per line: each node reads the lines of its part of the bytes."""

from __future__ import annotations

import array
import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from .._array import Array
from .._layout import ArrayLayout, axis_of
from .._move import resplit
from .._together import together
from .._world import world
from ._base import PIECE_BYTES, Choice

DIGITS = {2: 5, 4: 9, 8: 17}
"""Digits with which a float is read back unchanged, by its bytes."""


class Csv:
    """``.csv``: lines of numbers, with a delimiter between them."""

    def load(self, path: Path, choice: Choice) -> Array:
        """Reads lines; a row stays on the node that reads it, so nodes may have unequal numbers."""
        at = world()
        kind = np.dtype(jax.dtypes.canonicalize_dtype(choice.dtype or float))
        with together(at, f"read {path.name}"):
            nodes = at.nodes if choice.split is not None else 1
            node = at.node if choice.split is not None else 0
            if choice.rows == (0, None):
                lines = _lines(path, node, nodes, choice.header)
            else:
                lines = _lines_of(path, node, nodes, choice)
            rows = _numbers(lines, kind, choice.delimiter)
            if not len(rows):  # as wide as the others
                head = itertools.islice(_lines(path, 0, 1, choice.header), 1)
                rows = _numbers(head, kind, choice.delimiter)[:0]
        if choice.split is None:
            return Array(jnp.asarray(rows), ArrayLayout(rows.shape), at)
        counts = at.numbers(np.array(rows.shape))
        width = int(counts[:, 1].max())
        with together(at, f"read {path.name}"):
            if len(rows) and rows.shape[1] != width:
                raise ValueError(f"{path} has rows of {rows.shape[1]} and {width} numbers.")
        each = tuple(counts[:, 0].tolist())
        layout = ArrayLayout((sum(each), width), 0, each)
        block = jnp.asarray(rows.reshape(len(rows), width))
        return resplit(Array(block, layout, at), axis_of(choice.split, 2))

    def names(self, path: Path) -> list[str]:
        """Returns no name: a file holds one matrix."""
        return []

    def save(self, x: Array, path: Path, dataset: str) -> None:
        """Writes lines, replacing the file; nodes exchange the sizes, and write together."""
        if x.ndim not in (1, 2) or np.dtype(x.dtype).kind not in "iufb":
            raise TypeError(
                f"CSV holds rows of real numbers, got {x.dtype} of shape {x.shape}. Save a matrix."
            )
        x = x if x.split in (None, 0) else resplit(x, 0)
        at = x.world
        with contextlib.ExitStack() as stack:
            with together(at, f"write {path.name}"):
                text = stack.enter_context(tempfile.TemporaryFile())
                if x.split == 0 or at.node == 0:
                    _write(text, np.asarray(x.block))
            sizes = at.numbers(np.array([text.tell()]))[:, 0]
            with together(at, f"make {path.name}"):
                if at.node == 0:
                    with path.open("wb") as file:
                        file.truncate(int(sizes.sum()))
            with together(at, f"write {path.name}"), path.open("r+b") as file:
                file.seek(int(sizes[: at.node].sum()))
                text.seek(0)
                while piece := text.read(PIECE_BYTES):
                    file.write(piece)


_ends: dict[Any, tuple[int, int]] = {}
"""The end of the last part of a file: the number of the next row, and its byte."""


def _lines_of(path: Path, node: int, nodes: int, choice: Choice) -> Iterator[bytes]:
    """A node's share of some rows. Parts that are read one after another are found at once."""
    begin, end = choice.rows
    about = path.stat()
    key = path.absolute(), about.st_size, about.st_mtime_ns, choice.header
    with path.open("rb") as file:
        number, place = _ends.get(key, (begin + 1, 0))
        if number > begin:
            number, place = 0, 0
            for _ in range(choice.header):
                place += len(file.readline())
        file.seek(place)
        places = array.array("q")  # of the wanted rows; all nodes find the same
        while (end is None or number < end) and (line := file.readline()):
            if _has_numbers(line):
                if number >= begin:
                    places.append(place)
                number += 1
            place += len(line)
        _ends.clear()
        _ends[key] = number, place
        first, last = (len(places) * k // nodes for k in (node, node + 1))
        if first == last:
            return
        file.seek(places[first])
        stop = places[last] if last < len(places) else place
        while file.tell() < stop:
            if _has_numbers(line := file.readline()):
                yield line


def _has_numbers(line: bytes) -> bool:
    return bool(line.split(b"#", 1)[0].strip())


def _lines(path: Path, node: int, nodes: int, header: int) -> Iterator[bytes]:
    """Lines with numbers that begin in a node's part of the bytes after the header."""
    with path.open("rb") as file:
        for _ in range(header):
            file.readline()
        first = file.tell()
        size = path.stat().st_size - first
        begin, end = (first + size * k // nodes for k in (node, node + 1))
        if begin > first:  # the line that holds the byte before belongs to the node before
            file.seek(begin - 1)
            file.readline()
        while file.tell() < end:
            if _has_numbers(line := file.readline()):
                yield line


def _numbers(lines: Iterator[bytes], kind: np.dtype, delimiter: str) -> np.ndarray:
    """The numbers of lines, ``[rows, columns]``; ``[0, 0]`` if there are no lines."""
    first = next(lines, None)
    if first is None:
        return np.zeros((0, 0), kind)
    last = [first]

    def noted() -> Iterator[bytes]:
        for last[0] in itertools.chain([first], lines):
            yield last[0]

    try:
        return np.loadtxt(noted(), kind, delimiter=delimiter, ndmin=2)
    except ValueError as error:
        text = last[0].decode(errors="replace").strip()[:80]
        raise ValueError(
            f"The line {text!r} is no row of numbers ({str(error).split(' at row')[0]}). Give "
            "header= for lines before the first row, delimiter= for another than ','; write nan "
            "for a number that is missing."
        ) from None


def _write(text: BinaryIO, rows: np.ndarray) -> None:
    """Writes rows as lines, in pieces."""
    kind: Any = rows.dtype
    form = f"%.{DIGITS[kind.itemsize]}g" if kind.kind == "f" else "%d"
    step = max(1, PIECE_BYTES // max(1, 32 * rows[:1].size))
    for begin in range(0, len(rows), step):
        np.savetxt(text, rows[begin : begin + step], form, ",")
