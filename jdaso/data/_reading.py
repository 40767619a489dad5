"""Rows of files by plain reads: no memory map, no lock of Python's held."""

from __future__ import annotations

import dataclasses
import os
import stat
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._paths import shown

_MOST_BUFFERS = 1024
"""Of one read: IOV_MAX of Linux."""


class LoadingError(RuntimeError):
    """Data could not be read. Says which samples, of which step, and why."""


def require_regular(path: Path) -> None:
    """Raises `ValueError` for what is no regular file, nor a link to one.

    To open a pipe would wait for somebody who writes into it, for ever.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for is_one, name in _KINDS.items() if is_one(mode)), "a device")
        raise ValueError(
            f"{shown(path)} is {kind}, and rows are read at any place of a file. Give a regular "
            "file: copy what comes out of a pipe into one."
        )


_KINDS = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}


class OpenFile:
    """A regular file to read from.

    Reads are ``preadv``: any number of threads at once, each without Python's lock. A memory map
    would count as memory of the process, page by page as it is touched.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).absolute()
        require_regular(self.path)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def fill(self, buffers: Sequence[Any], offset: int) -> None:
        """Fills buffers, one after another, from the bytes at `offset`.

        Raises:
            LoadingError: the file is shorter, or cannot be read.
        """
        left, at = [memoryview(x).cast("B") for x in buffers], 0
        while at < len(left):
            try:
                got = os.preadv(self._descriptor, left[at : at + _MOST_BUFFERS], offset)
            except OSError as error:  # of a descriptor: it does not name the file
                raise LoadingError(
                    f"{shown(self.path)} cannot be read at byte {offset}: {error}. Look for a "
                    "disk or a file system in trouble."
                ) from error
            if got == 0:
                raise LoadingError(
                    f"{shown(self.path)} ends at byte {offset}, before what its header says. It "
                    "was cut short; write it again."
                )
            offset += got
            while got and got >= left[at].nbytes:
                got -= left[at].nbytes
                at += 1
            if got:
                left[at] = left[at][got:]

    def read(self, size: int, offset: int) -> bytearray:
        """So many bytes from `offset`."""
        found = bytearray(size)
        if size:
            self.fill([found], offset)
        return found


def runs(indices: np.ndarray) -> Iterator[np.ndarray]:
    """Places in `indices` whose values are neighbours in the file, as they lie there.

    ``indices[places]`` of each is ``first, first + 1, ...``; all together hold every place once.
    """
    if not len(indices):
        return
    by_value = np.argsort(indices, kind="stable")
    breaks = np.flatnonzero(np.diff(indices[by_value]) != 1) + 1
    yield from np.split(by_value, breaks)


@dataclasses.dataclass(frozen=True)
class Rows:
    """An array that lies in a file in C order, read row by row.

    Attributes:
        file: where.
        offset: of its first byte.
        shape: with rows along the leading axis.
        dtype: as it lies in the file.
    """

    file: OpenFile
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """A copy of these rows, in this order, in the machine's byte order.

        Neighbours are read together, in the order in which they lie in the file, each straight to
        its place.
        """
        found = np.empty((len(indices), *self.shape[1:]), self.dtype)
        size = found[:1].nbytes
        if size:
            flat = found.view(np.uint8).reshape(len(indices), size)
            for places in runs(indices):
                offset = self.offset + int(indices[places[0]]) * size
                self.file.fill([flat[place] for place in places], offset)
        return native(found)


def native(array: np.ndarray) -> np.ndarray:
    """In the machine's byte order."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


@dataclasses.dataclass(frozen=True)
class Joined:
    """Arrays one after another, as one: shards."""

    parts: tuple[Any, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """A copy of these rows, in this order."""
        if len(self.parts) == 1:
            return self.parts[0].rows(indices)
        ends = np.cumsum([len(part) for part in self.parts])
        owners = np.searchsorted(ends, indices, side="right")
        shape = (len(indices), *self.parts[0].shape[1:])
        found = np.empty(shape, self.parts[0].dtype.newbyteorder("="))
        for owner in np.unique(owners):
            places = np.flatnonzero(owners == owner)
            begin = ends[owner] - len(self.parts[owner])
            found[places] = self.parts[owner].rows(indices[places] - begin)
        return found
