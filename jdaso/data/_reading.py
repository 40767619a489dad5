"""Rows of files by plain reads: no memory map, and Python's lock is not held."""

from __future__ import annotations

import dataclasses
import os
import stat
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._launch.paths import shown
from ._open_files import Descriptor

_MOST_BUFFERS = 1024
"""The most buffers of one read: IOV_MAX of Linux."""


class LoadingError(RuntimeError):
    """Data could not be read. The text names the samples, the step and the reason."""


def require_regular(path: Path) -> None:
    """Raises `ValueError` unless a path is a regular file or a link to one.

    Opening a pipe would wait forever for a process that writes into it.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for is_one, name in _KINDS.items() if is_one(mode)), "a device")
        raise ValueError(
            f"{shown(path)} is {kind}, but rows are read at any position of a file. Give a regular "
            "file: copy the output of a pipe into one."
        )


_KINDS = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}


class OpenFile:
    """A regular file to read from.

    Reads are ``preadv``: any number of threads at once, none of which holds Python's lock. A memory
    map would count as the process's memory, page by page as it is touched.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).absolute()
        require_regular(self.path)
        self._descriptor = Descriptor(self.path)
        weakref.finalize(self, self._descriptor.close)

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFile, (self.path,)  # a copy opens the file itself

    def fill(self, buffers: Sequence[Any], offset: int) -> None:
        """Fills buffers, one after another, from the bytes at `offset`.

        Raises:
            LoadingError: the file is shorter, or cannot be read.
        """
        try:
            number = self._descriptor.take()
        except OSError as error:
            raise self._failed(offset, error) from error
        try:
            self._fill(number, [memoryview(x).cast("B") for x in buffers], offset)
        finally:
            self._descriptor.give_back()

    def _fill(self, number: int, left: list[memoryview], offset: int) -> None:
        at = 0
        while at < len(left):
            try:
                got = os.preadv(number, left[at : at + _MOST_BUFFERS], offset)
            except OSError as error:  # from a descriptor: it does not name the file
                raise self._failed(offset, error) from error
            if got == 0:
                raise LoadingError(
                    f"{shown(self.path)} ends at byte {offset}, earlier than its header says. It "
                    "was cut short; write it again."
                )
            offset += got
            while got and got >= left[at].nbytes:
                got -= left[at].nbytes
                at += 1
            if got:
                left[at] = left[at][got:]

    def _failed(self, offset: int, error: OSError) -> LoadingError:
        return LoadingError(
            f"{shown(self.path)} cannot be read at byte {offset}: {error}. Look for a disk or a "
            "file system in trouble."
        )

    def read(self, size: int, offset: int) -> bytearray:
        """Reads `size` bytes from `offset` on."""
        found = bytearray(size)
        if size:
            self.fill([found], offset)
        return found


def runs(indices: np.ndarray) -> Iterator[np.ndarray]:
    """Yields groups of places in `indices` whose values are adjacent in the file, in file order.

    Within a group ``indices[places]`` is ``first, first + 1, ...``; every place is in one group.
    """
    if not len(indices):
        return
    by_value = np.argsort(indices, kind="stable")
    breaks = np.flatnonzero(np.diff(indices[by_value]) != 1) + 1
    yield from np.split(by_value, breaks)


@dataclasses.dataclass(frozen=True)
class Rows:
    """An array stored in a file in C order, read row by row.

    Attributes:
        file: the file.
        offset: of its first byte.
        shape: shape, with rows along the leading axis.
        dtype: dtype in the file.
    """

    file: OpenFile
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Returns a copy of the rows at `indices`, in that order, in the machine's byte order.

        Adjacent rows are read together, in file order, each directly into its place.
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
    """Returns an array in the machine's byte order."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


@dataclasses.dataclass(frozen=True)
class Joined:
    """Arrays joined along their rows: shards."""

    parts: tuple[Any, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Returns a copy of the rows at `indices`, in that order."""
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
