"""NetCDF files: version 4, which is HDF5, and the older ones, which SciPy maps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import netcdf_file

from ..._base.extras import needs
from .._array import Array
from ._hdf5 import Hdf5, chosen, names_of, room

_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable.%10d"
"""The name that netCDF gives to the scale of a dimension without coordinates."""


class NetCDF(Hdf5):
    """``.nc``: variables by name. Numbers are as stored: no scale, offset or mask is applied."""

    @contextlib.contextmanager
    def opened(self, path: Path, dataset: str | None) -> Iterator[Any]:
        """Opens a variable; None: the only one that is not a dimension's coordinates."""
        with path.open("rb") as file:
            older = file.read(3) == b"CDF"
        with _older(path, dataset) if older else _newer(path, dataset) as stored:
            yield stored

    def names(self, path: Path) -> list[str]:
        """Returns the names of the variables in a file."""
        with path.open("rb") as file:
            older = file.read(3) == b"CDF"
        if older:
            with contextlib.closing(netcdf_file(path, "r", mmap=True)) as file:
                return list(file.variables)
        h5py = needs("h5py", "A netCDF file", "arrays")
        with h5py.File(path, "r") as file:
            return [name for name in names_of(file) if not _is_dimension(file[name])]

    def save(self, x: Array, path: Path, dataset: str) -> None:
        """Writes an array, replacing the file; all nodes write their rows at once."""
        if np.dtype(x.dtype).kind in "cb":
            raise TypeError(f"NetCDF files have no type for {x.dtype}. Save its parts as numbers.")
        super().save(x, path, dataset)

    def make(self, path: Path, dataset: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Makes a file of version 4 with room for all rows, and a dimension for each axis."""
        h5py = needs("h5py", "A netCDF file", "arrays")
        with h5py.File(path, "w", track_order=True) as file:
            for axis, size in enumerate(shape):
                scale = file.create_dataset(f"{dataset}_{axis}", (size,), ">f4")
                scale.make_scale(_NO_VARIABLE % size)
                scale.attrs["_Netcdf4Dimid"] = np.int32(axis)
            room(file, dataset, shape, dtype)
            for axis in range(len(shape)):
                file[dataset].dims[axis].attach_scale(file[f"{dataset}_{axis}"])


def _is_dimension(stored: Any) -> bool:
    """Returns whether a data set is the scale of a dimension without coordinates."""
    name = stored.attrs.get("NAME", b"")
    return bytes(name).startswith(_NO_VARIABLE[:40].encode())


class _Variable:
    """A variable of a mapped file; holds no part of the map, so that the map can be closed."""

    def __init__(self, file: Any, name: str):
        self.shape, self.dtype = file.variables[name].shape, file.variables[name].data.dtype
        self._file, self._name = file, name

    def __getitem__(self, part: Any) -> np.ndarray:
        return self._file.variables[self._name].data[part].copy()


@contextlib.contextmanager
def _older(path: Path, dataset: str | None) -> Iterator[Any]:
    with contextlib.closing(netcdf_file(path, "r", mmap=True)) as file:
        names = [name for name in file.variables if name not in file.dimensions]
        every = list(file.variables) if dataset else names
        yield _Variable(file, chosen(path, dataset, every))


@contextlib.contextmanager
def _newer(path: Path, dataset: str | None) -> Iterator[Any]:
    h5py = needs("h5py", "A netCDF file", "arrays")
    with h5py.File(path, "r") as file:
        names = names_of(file)
        free = [name for name in names if not file[name].is_scale]
        yield file[chosen(path, dataset, names if dataset else free)]
