"""Files: each node reads and writes its own rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._array import Array
from ._layout import Layout, axis_of
from ._move import resplit
from ._together import together
from ._world import world

HDF5 = (".h5", ".hdf5", ".he5")


def load(
    path: Any, dataset: str | None = None, *, split: int | None = 0, dtype: Any = None
) -> Array:
    """Reads an array from an HDF5 or npy file; each node only its own part.

    Args:
        path: the file, which all nodes see; its ending tells the format.
        dataset: of an HDF5 file; None: the one that is there.
        split: the axis to divide over nodes; None: each node reads all of it.
        dtype: the type; None: the file's.

    Raises:
        OSError, ValueError: on every node, if one node cannot read its part.
    """
    at, path = world(), Path(path)
    with together(at, f"read {path.name}"), _opened(path, dataset) as stored:
        axis = None if split is None else axis_of(split, len(stored.shape))
        layout = Layout(tuple(stored.shape)).over(axis, at.nodes)
        where = (slice(None),) * len(stored.shape)
        if axis is not None:
            where = (*where[:axis], layout.slice_of(at.node), *where[axis + 1 :])
        block = jnp.asarray(stored[where], dtype)
    return Array(block, layout, at)


@contextlib.contextmanager
def _opened(path: Path, dataset: str | None) -> Iterator[Any]:
    """A file's array, of which slices can be read."""
    if path.suffix == ".npy":
        yield np.load(path, mmap_mode="r")
        return
    if path.suffix not in HDF5:
        raise ValueError(f"{path} has no known ending. Give one of .npy, {', '.join(HDF5)}.")
    import h5py

    with h5py.File(path, "r") as file:
        names: list[str] = []
        file.visititems(
            lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) else None
        )
        name = dataset or (names[0] if len(names) == 1 else "")
        if name not in file:
            there = ", ".join(names) or "none"
            raise ValueError(f"{path} has the data sets {there}, got {dataset!r}. Name one.")
        yield file[name]


def save(x: Array, path: Any, dataset: str = "data") -> None:
    """Writes an array to an HDF5 or npy file, replacing it; all nodes write their rows at a time.

    Args:
        x: the array.
        path: the file, which all nodes see; its ending tells the format.
        dataset: its name in an HDF5 file.

    Raises:
        OSError, ValueError: on every node, if one node cannot write its part.
        TypeError: files have no type for the numbers; an older file stays as it is.
    """
    path = Path(path)
    if np.dtype(x.dtype).kind == "V":
        raise TypeError(f"Files have no type for {x.dtype}. Save x.astype('float32').")
    if x.split not in (None, 0):
        x = resplit(x, 0)  # rows of a file are one behind the other
    with together(x.world, f"make {path.name}"):
        if x.world.node == 0:
            _make(x, path, dataset)
    with together(x.world, f"write {path.name}"):
        if x.size and (x.split == 0 or x.world.node == 0):
            _write_rows(x, path, dataset)


def _make(x: Array, path: Path, dataset: str) -> None:
    """Makes a file with room for all rows, one behind the other."""
    dtype = np.dtype(x.dtype)
    if path.suffix == ".npy":
        np.lib.format.open_memmap(path, "w+", dtype, x.shape).flush()
        return
    if path.suffix not in HDF5:
        raise ValueError(f"{path} has no known ending. Give one of .npy, {', '.join(HDF5)}.")
    import h5py

    with h5py.File(path, "w") as file:
        about = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        about.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        space = h5py.h5s.create_simple(x.shape)
        kind = h5py.h5t.py_create(dtype, logical=True)
        h5py.h5d.create(file.id, dataset.encode(), kind, space, about)


def _write_rows(x: Array, path: Path, dataset: str) -> None:
    """Writes this node's rows to their place in the file.

    By plain writes of their bytes: nodes that share a page of a mapped file could lose each other's
    on a network file system.
    """
    begin = x.layout.begins[x.world.node] if x.split == 0 else 0
    with path.open("r+b") as file:
        file.seek(_first_byte(path, dataset) + begin * x.nbytes // (x.shape[0] if x.shape else 1))
        file.write(np.ascontiguousarray(x.block).data)


def _first_byte(path: Path, dataset: str) -> int:
    """Returns the place of an array in its file, whose rows are one behind the other."""
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r").offset
    import h5py

    with h5py.File(path, "r") as file:
        stored: Any = file[dataset]
        return stored.id.get_offset()
