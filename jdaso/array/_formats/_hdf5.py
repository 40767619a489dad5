"""HDF5 files: one of their data sets, written without chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.extras import needs
from ._base import Placed


class Hdf5(Placed):
    """``.h5``: data sets by name."""

    @contextlib.contextmanager
    def opened(self, path: Path, dataset: str | None) -> Iterator[Any]:
        """Opens a data set; None: the only one."""
        h5py = needs("h5py", "An HDF5 file", "arrays")
        with h5py.File(path, "r") as file:
            yield file[chosen(path, dataset, names_of(file))]

    def names(self, path: Path) -> list[str]:
        """Returns the names of the arrays in a file."""
        h5py = needs("h5py", "An HDF5 file", "arrays")
        with h5py.File(path, "r") as file:
            return names_of(file)

    def make(self, path: Path, dataset: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Makes a file with room for all rows."""
        h5py = needs("h5py", "An HDF5 file", "arrays")
        with h5py.File(path, "w") as file:
            room(file, dataset, shape, dtype)

    def first_byte(self, path: Path, dataset: str) -> int:
        """Returns the place of the data set in its file."""
        h5py = needs("h5py", "An HDF5 file", "arrays")
        with h5py.File(path, "r") as file:
            stored: Any = file[dataset]
            return stored.id.get_offset()


def names_of(file: Any) -> list[str]:
    """Returns the names of an open file's data sets."""
    found: list[str] = []
    file.visititems(lambda name, one: found.append(name) if hasattr(one, "shape") else None)
    return found


def chosen(path: Path, dataset: str | None, names: list[str]) -> str:
    """Returns the name of the array to read.

    Raises:
        ValueError: the file has none of this name, or none was named and there are several.
    """
    name = dataset or (names[0] if len(names) == 1 else "")
    if name.strip("/") not in names:
        there = ", ".join(names) or "none"
        raise ValueError(f"{path} has the data sets {there}, got {dataset!r}. Name one.")
    return name


def room(file: Any, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Makes a data set whose bytes are contiguous and allocated from the start."""
    h5py = needs("h5py", "An HDF5 file", "arrays")
    about = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    about.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    space = h5py.h5s.create_simple(shape)
    kind = h5py.h5t.py_create(dtype, logical=True)
    link = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    link.set_create_intermediate_group(True)
    h5py.h5d.create(file.id, name.encode(), kind, space, about, link).close()
