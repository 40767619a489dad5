"""Files: each node reads and writes its own part."""

from __future__ import annotations

import operator
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ._array import Array, as_array
from ._formats import format_of
from ._formats._base import Choice, Format
from ._together import together
from ._world import world


def load(
    path: Any,
    dataset: str | None = None,
    *,
    split: int | None = 0,
    dtype: Any = None,
    delimiter: str = ",",
    header: int = 0,
    rows: slice | None = None,
) -> Array:
    """Reads an array from a file; each node only its own part.

    A node needs the memory of its block and of 16 MB (or one row): the file is read in pieces, each
    converted at once to its final type. For CSV a node also holds its rows in 64 bits.

    Args:
        path: the file, which all nodes can access; its ending gives the format.
        dataset: the name in a file of several arrays; None: the only one.
        split: the axis to divide over nodes; None: each node reads all of it, as with an array
            without axes.
        dtype: the type; None: the file's. Without `jax_enable_x64`, 64-bit numbers become 32-bit
            ones; if 64 bits were requested, with a warning.
        delimiter: between the numbers of a line, in CSV files.
        header: lines before the first row, in CSV files.
        rows: a range of the first axis: a part of a file larger than all nodes' memory. Like a
            slice of NumPy it is cut at the end of the file, where no rows are left.

    Moves nothing but counts; of CSV files, where lines differ in length, the rows to share out
    evenly those of `rows` or to split along another axis.

    Raises:
        OSError, ValueError: on every node, if one node cannot read its part, or if whole numbers
            of 64 bits do not fit 32.
        ValueError: `rows` has a step, or counts from the end.
        ImportError: a package that reads the format is missing; the error names the package.
    """
    at, path, wanted = world(), Path(path), _range_of(rows)
    _warn_if_narrowed(dtype)
    with together(at, f"read {path.name}"):
        kind = format_of(path)
    return kind.load(path, Choice(dataset, split, dtype, delimiter, header, wanted))


def _range_of(rows: slice | None) -> tuple[int, int | None]:
    """The first row, and the one behind the last; None: the last of the file."""
    if rows is None:
        return 0, None
    if not isinstance(rows, slice):
        raise TypeError(f"rows must be a slice, such as slice(0, 1000), got {rows!r}.")
    begin = 0 if rows.start is None else operator.index(rows.start)
    end = None if rows.stop is None else operator.index(rows.stop)
    if rows.step not in (None, 1) or begin < 0 or (end is not None and end < 0):
        raise ValueError(
            f"rows must be a slice without a step or negative numbers, got {rows}. Count from the "
            "front, and take x[::step] of what is read."
        )
    return begin, end


def _warn_if_narrowed(dtype: Any) -> None:
    """Warns of a requested type that JAX does not have without `jax_enable_x64`."""
    if dtype is None:
        return
    found = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    if found != np.dtype(dtype):
        warnings.warn(
            f"The numbers are read as {found}, not as {np.dtype(dtype)}: JAX computes in 32 bits. "
            "Set JAX_ENABLE_X64=1 in the environment of all nodes for 64.",
            stacklevel=4,
        )


def save(x: Any, path: Any, dataset: str = "data") -> None:
    """Writes an array to a file, replacing the file; all nodes write their parts at once.

    A file that holds other arrays is refused: they would be lost. Moves nothing, but for an array
    split along another axis what `resplit` to 0 moves, and for Zarr the rows that complete chunks.

    Args:
        x: the array.
        path: the file, which all nodes can access; its ending gives the format.
        dataset: the array's name in a file that can hold several.

    Raises:
        OSError, ValueError: on every node, if one node cannot write its part, or the file holds
            other arrays.
        TypeError: files have no type for the numbers; an older file stays as it is.
        ImportError: a package that writes the format is missing; the error names the package.
    """
    if isinstance(path, Array):
        raise TypeError("save takes the array first, then the path: ja.save(x, path).")
    path, x = Path(path), as_array(x)
    if np.dtype(x.dtype).kind == "V":
        raise TypeError(f"Files have no type for {x.dtype}. Save x.astype('float32').")
    if x.split is None:  # made before the session, whose nodes must write one file
        x = Array(x.block, x.layout, world())
    kind = format_of(path)
    with together(x.world, f"replace {path.name}"):
        if x.world.node == 0:
            _require_replaceable(kind, path, dataset)
    kind.save(x, path, dataset)


def _require_replaceable(kind: Format, path: Path, dataset: str) -> None:
    """Raises `ValueError` if a file holds other arrays; one that cannot be read holds none."""
    try:
        there = kind.names(path)
    except (OSError, ValueError, KeyError, TypeError):
        there = []
    if others := [name for name in there if name != dataset.strip("/")]:
        raise ValueError(
            f"{path} holds the arrays {', '.join(others)}, which saving {dataset!r} would remove: "
            "a file that is saved holds one array. Give another path, or remove the file."
        )
