"""Text with a row of numbers per line: each node reads the lines of its part of the bytes."""

from __future__ import annotations

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
from .._move import balance, resplit
from .._together import together
from .._world import World, world
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
            part = path, node, nodes, choice.header
            every = choice.rows == (0, None)
            own = 0 if every else sum(1 for _ in _lines(*part))
        own_rows = slice(None) if every else _own_rows(choice, own, at)
        with together(at, f"read {path.name}"):
            lines = itertools.islice(_lines(*part), own_rows.start, own_rows.stop)
            rows = _numbers(lines, kind, choice.delimiter)
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
        found = Array(block, layout, at)
        return resplit(found if every else balance(found), axis_of(choice.split, 2))

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


def _own_rows(choice: Choice, own: int, at: World) -> slice:
    """The rows to read of those in a node's part of the file, `own` in number."""
    if choice.split is None:
        wanted = choice.range_of(own)
        return slice(wanted.start, wanted.stop)
    counts = at.numbers(np.array([own]))[:, 0]
    wanted, begin = choice.range_of(int(counts.sum())), int(counts[: at.node].sum())
    first, last = (min(max(end - begin, 0), own) for end in (wanted.start, wanted.stop))
    return slice(first, last)


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
            line = file.readline()
            if line.split(b"#", 1)[0].strip():
                yield line


def _numbers(lines: Iterator[bytes], kind: np.dtype, delimiter: str) -> np.ndarray:
    """The numbers of lines, ``[rows, columns]``; ``[0, 0]`` if there are no lines."""
    first = next(lines, None)
    if first is None:
        return np.zeros((0, 0), kind)
    both = itertools.chain([first], lines)
    return np.loadtxt(both, kind, delimiter=delimiter, ndmin=2)


def _write(text: BinaryIO, rows: np.ndarray) -> None:
    """Writes rows as lines, in pieces."""
    kind: Any = rows.dtype
    form = f"%.{DIGITS[kind.itemsize]}g" if kind.kind == "f" else "%d"
    step = max(1, PIECE_BYTES // max(1, 32 * rows[:1].size))
    for begin in range(0, len(rows), step):
        np.savetxt(text, rows[begin : begin + step], form, ",")
