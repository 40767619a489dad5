"""Zarr arrays: folders of chunks, of which each node writes whole ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.extras import needs
from .._array import Array
from .._layout import ArrayLayout, replaced
from .._move import laid
from .._together import together
from ._base import Sliced
from ._hdf5 import chosen

CHUNK_BYTES = 1 << 24
"""The approximate size of a chunk that is written."""


class Zarr(Sliced):
    """``.zarr``: an array, or a group of arrays by name; versions 2 and 3, written as 3."""

    @contextlib.contextmanager
    def opened(self, path: Path, dataset: str | None) -> Iterator[Any]:
        """Opens an array; None: the only one."""
        zarr = needs("zarr", "A Zarr array", "arrays")
        found = zarr.open(path, mode="r")
        if not isinstance(found, zarr.Array):
            found = found[chosen(path, dataset, _names_of(found))]
        yield found

    def names(self, path: Path) -> list[str]:
        """Returns the names of the arrays in a group; none for an array alone."""
        zarr = needs("zarr", "A Zarr array", "arrays")
        found = zarr.open(path, mode="r")
        return [] if isinstance(found, zarr.Array) else _names_of(found)

    def save(self, x: Array, path: Path, dataset: str) -> None:
        """Writes a group with the array, replacing it; each node whole chunks of its own.

        Moves the rows that complete chunks; most rows if they are not shared out evenly.
        """
        axis, nodes = x.split or 0, x.world.nodes
        size = x.shape[axis] if x.shape else 1
        share = -(-size // nodes)
        fitting = max(1, CHUNK_BYTES * size // max(1, x.nbytes))
        parts = -(-share // fitting)
        rows = max(1, -(-share // max(1, parts)))
        whole = _by_chunks(x, axis, rows)
        with together(x.world, f"make {path.name}"):
            zarr = needs("zarr", "A Zarr array", "arrays")
            if x.world.node == 0:
                group = zarr.open_group(path, mode="w")
                chunks = tuple(max(1, n) for n in replaced(x.shape, axis, rows)) if x.shape else ()
                group.create_array(
                    dataset, shape=x.shape, dtype=np.dtype(x.dtype), chunks=chunks or "auto"
                )
        with together(x.world, f"write {path.name}"):
            if x.size and (x.split is not None or x.world.node == 0):
                part: list[Any] = [slice(None)] * x.ndim
                if x.split is not None:
                    part[axis] = whole.layout.slice_of(x.world.node)
                zarr.open_group(path, mode="r+")[dataset][tuple(part)] = np.asarray(whole.block)


def _names_of(group: Any) -> list[str]:
    """The names of all arrays in a group and in the groups within it."""
    found = group.members(max_depth=None)
    return sorted(name for name, one in found if hasattr(one, "shape"))


def _by_chunks(x: Array, axis: int, rows: int) -> Array:
    """The array with whole chunks of `rows` on each node, the last ones on the last nodes."""
    if x.split is None:
        return x
    chunks = -(-x.shape[axis] // rows)
    each = [chunks * (k + 1) // x.world.nodes for k in range(x.world.nodes)]
    ends = [min(end * rows, x.shape[axis]) for end in each]
    counts = tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))
    return laid(x, ArrayLayout(x.shape, axis, counts))
