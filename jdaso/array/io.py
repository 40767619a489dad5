"""Files: each node reads and writes its own part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ._array import Array
from ._formats import format_of
from ._formats._base import Choice
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
) -> Array:
    """Reads an array from a file; each node only its own part.

    A node needs the memory of its block and of 16 MB (or one row): the file is read in pieces, each
    converted at once to its final type. For CSV a node also holds its rows in 64 bits.

    Args:
        path: the file, which all nodes can access; its ending gives the format.
        dataset: the name in a file of several arrays; None: the only one.
        split: the axis to divide over nodes; None: each node reads all of it, as with an array
            without axes.
        dtype: the type; None: the file's.
        delimiter: between the numbers of a line, in CSV files.
        header: lines before the first row, in CSV files.

    Raises:
        OSError, ValueError: on every node, if one node cannot read its part.
        ImportError: a package that reads the format is missing; the error tells how to install it.
    """
    at, path = world(), Path(path)
    with together(at, f"read {path.name}"):
        kind = format_of(path)
    return kind.load(path, Choice(dataset, split, dtype, delimiter, header))


def save(x: Array, path: Any, dataset: str = "data") -> None:
    """Writes an array to a file, replacing the file; all nodes write their parts at once.

    Args:
        x: the array.
        path: the file, which all nodes can access; its ending gives the format.
        dataset: the array's name in a file that can hold several.

    Raises:
        OSError, ValueError: on every node, if one node cannot write its part.
        TypeError: files have no type for the numbers; an older file stays as it is.
        ImportError: a package that writes the format is missing; the error tells how to install it.
    """
    path = Path(path)
    if np.dtype(x.dtype).kind == "V":
        raise TypeError(f"Files have no type for {x.dtype}. Save x.astype('float32').")
    if x.split is None:  # made before the session, whose nodes must write one file
        x = Array(x.block, x.layout, world())
    format_of(path).save(x, path, dataset)
