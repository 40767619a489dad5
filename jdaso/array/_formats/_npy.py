"""NumPy's own files of one array."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ._base import Placed


class NpyFile(Placed):
    """``.npy``: a header, then the rows."""

    @contextlib.contextmanager
    def opened(self, path: Path, dataset: str | None) -> Iterator[Any]:
        """Opens the array, mapped."""
        yield np.load(path, mmap_mode="r")

    def make(self, path: Path, dataset: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Makes a file with room for all rows."""
        np.lib.format.open_memmap(path, "w+", dtype, shape).flush()

    def first_byte(self, path: Path, dataset: str) -> int:
        """Returns the place of the array in its file."""
        return np.load(path, mmap_mode="r").offset
