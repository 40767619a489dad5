"""Files of `numpy.save`, larger than memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .._jax.types import PyTree
from .._launch.paths import shown
from ._arrays import common_length
from ._reading import Joined, OpenFile, Rows, require_regular

Paths = str | Path | Sequence[str | Path]


class Npy:
    """Arrays in ``.npy`` files; only the requested rows are read.

    Args:
        paths: a file; several files, whose rows are joined; or a dict of these by name.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is not a ``.npy`` file with rows in C order (for instance a pipe), or the
            files do not match.

    Example:
        >>> import tempfile, numpy as np
        >>> from jdaso.data import Npy
        >>> path = tempfile.mkdtemp() + "/x.npy"
        >>> np.save(path, np.arange(12).reshape(6, 2))
        >>> Npy({"x": path}).rows(np.array([5, 0]))["x"].tolist()
        [[10, 11], [0, 1]]
    """

    def __init__(self, paths: Paths | Mapping[str, Paths]):
        named = paths if isinstance(paths, Mapping) else {"": paths}
        self._arrays = {name: _joined(of_name) for name, of_name in named.items()}
        self._one = not isinstance(paths, Mapping)
        self._length = common_length(self._arrays)

    def __len__(self) -> int:
        return self._length

    def rows(self, indices: np.ndarray) -> PyTree:
        """Returns the samples at `indices`, in that order: an array, or a dict of arrays."""
        found = {name: array.rows(indices) for name, array in self._arrays.items()}
        return found[""] if self._one else found


def _joined(paths: Paths) -> Joined:
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    parts = tuple(_open(Path(path)) for path in several)
    kinds = {f"{part.dtype}{list(part.shape[1:])}" for part in parts}
    if len(kinds) != 1:
        raise ValueError(
            f"Files whose rows follow one another must have rows of one kind, got "
            f"{', '.join(sorted(kinds)) or 'no file'} in {', '.join(map(shown, several))}."
        )
    return Joined(parts)


def _open(path: Path) -> Rows:
    """Opens the array of a file, from its header."""
    name = shown(path)
    require_regular(path)
    with open(path, "rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
                version, np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(file)
        except Exception as error:  # Python's own parser reads the header, and may raise
            raise ValueError(f"{name} is not a .npy file: {error}") from error
        offset, size = file.tell(), path.stat().st_size
    if not shape or dtype.hasobject or (fortran and len(shape) > 1):
        raise ValueError(
            f"{name} holds {dtype}{list(shape)}{' in Fortran order' * fortran}, but rows "
            "can only be read from numbers in C order. Save numpy.ascontiguousarray(array) with at "
            "least one axis."
        )
    if size < offset + dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise ValueError(
            f"{name} is cut short: {size} bytes for {dtype}{list(shape)} from byte {offset} on. "
            "Write it again."
        )
    return Rows(OpenFile(path), offset, shape, dtype)
