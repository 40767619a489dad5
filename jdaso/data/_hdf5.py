"""HDF5 data sets larger than memory, read without the library, which is single-threaded."""

from __future__ import annotations

import functools
import logging
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._base.extras import needs
from .._jax.types import PyTree
from .._launch.paths import shown
from ._arrays import common_length
from ._reading import LoadingError, OpenFile, Rows, native, runs

log = logging.getLogger("jdaso")

_DEFLATE, _SHUFFLE = 1, 2
_CACHED_BLOCKS = 4
"""Unpacked blocks to keep: their neighbours are often read next."""


class HDF5:
    """Data sets of an HDF5 file; only the requested rows are read.

    The HDF5 library allows one thread at a time, so it is used only to find the data. Contiguous
    data sets and chunks (plain, or with the filters ``gzip`` and ``shuffle``) are read directly
    from the file and unpacked with zlib, by any number of threads, without Python's lock; from a
    plain chunk, only the requested rows. The library reads data sets of other kinds, and the log
    names them.

    A packed chunk is read whole even for one row; the last 4 are kept. Pass the rows of a
    chunk as `Loader`'s ``shuffle_block``, or store chunks of few rows.

    Args:
        path: the file; it must not be written to in the meantime.
        names: a data set; several; or a dict from the names in the samples to data sets.

    Raises:
        ImportError: h5py is missing.
        FileNotFoundError: the file is missing.
        ValueError: the file is not an HDF5 file (for instance a pipe), has no such data set, or the
            data set has no rows of numbers.

    Example:
        >>> import tempfile, h5py, numpy as np
        >>> from jdaso.data import HDF5
        >>> path = tempfile.mkdtemp() + "/x.h5"
        >>> with h5py.File(path, "w") as file:
        ...     file["image"] = np.arange(12).reshape(6, 2)
        >>> HDF5(path, ["image"]).rows(np.array([5, 0]))["image"].tolist()
        [[10, 11], [0, 1]]
    """

    def __init__(self, path: str | Path, names: str | Sequence[str] | Mapping[str, str]):
        h5py = needs("h5py", "HDF5", "data")
        self._one = isinstance(names, str)
        given = [names] if isinstance(names, str) else names
        named = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
        file = OpenFile(path)
        try:
            library = h5py.File(file.path, "r")
        except OSError as error:
            raise ValueError(f"{shown(file.path)} is not a readable HDF5 file: {error}") from error
        keep = False
        self._arrays = {}
        for name, of in named.items():
            array = _find(library, of, file)
            keep |= isinstance(array, _Through)
            self._arrays[name] = array
        if not keep:
            library.close()
        self._length = common_length(self._arrays)

    def __len__(self) -> int:
        return self._length

    def rows(self, indices: np.ndarray) -> PyTree:
        """Returns the samples at `indices`, in that order: an array, or a dict of arrays."""
        found = {name: array.rows(indices) for name, array in self._arrays.items()}
        return next(iter(found.values())) if self._one else found


class _Table(NamedTuple):
    """The chunks of a data set, sorted by their first row."""

    starts: np.ndarray  # int64 [chunks, axes], index of the first element
    offsets: np.ndarray  # int64 [chunks], in the file
    sizes: np.ndarray  # int64 [chunks], bytes
    masks: np.ndarray  # uint32 [chunks]; bit k: filter k was skipped


class _Chunked:
    """A data set in chunks.

    Args:
        dataset: h5py's data set; not kept.
        file: the file, to read from.
        filters: codes of the filters, in the order in which they were applied.
    """

    def __init__(self, dataset: Any, file: OpenFile, filters: Sequence[int]):
        self.shape, self.dtype = dataset.shape, dataset.dtype
        self._file, self._filters, self._chunk = file, tuple(filters), dataset.chunks
        self._fill, self._table = dataset.fillvalue, _table(dataset)
        self._whole_rows = self._chunk[1:] == self.shape[1:]
        self._block = functools.lru_cache(_CACHED_BLOCKS)(self._read_block)

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Returns a copy of the rows at `indices`, in that order."""
        found = np.empty((len(indices), *self.shape[1:]), self.dtype.newbyteorder("="))
        blocks = indices // self._chunk[0]
        for number in np.unique(blocks):
            places = np.flatnonzero(blocks == number)
            inside = indices[places] - number * self._chunk[0]
            found[places] = self._of_block(int(number), inside)
        return found

    def _of_block(self, number: int, inside: np.ndarray) -> np.ndarray:
        """Reads rows of the chunks that start at one row."""
        chunks = self._chunks(number)
        if self._whole_rows and not self._filters and len(chunks) == 1:
            offset = int(self._table.offsets[chunks[0]])
            return Rows(self._file, offset, self._chunk, self.dtype).rows(inside)
        return self._block(number)[inside]

    def _chunks(self, number: int) -> range:
        first = number * self._chunk[0]
        begin, end = np.searchsorted(self._table.starts[:, 0], [first, first + 1])
        return range(begin, end)

    def _read_block(self, number: int) -> np.ndarray:
        """Reads all rows of the chunks that start at one row."""
        found = np.full((self._chunk[0], *self.shape[1:]), self._fill, self.dtype)
        for chunk in self._chunks(number):
            content = self._unpack(chunk)
            starts = self._table.starts[chunk].tolist()
            at = [slice(k, k + n) for k, n in zip(starts[1:], self._chunk[1:], strict=True)]
            place = found[(slice(None), *at)]
            place[...] = content[tuple(slice(n) for n in place.shape)]
        return native(found)

    def _unpack(self, chunk: int) -> np.ndarray:
        """Reads and unpacks the elements of one chunk."""
        size, offset = int(self._table.sizes[chunk]), int(self._table.offsets[chunk])
        packed: Any = self._file.read(size, offset)
        mask = int(self._table.masks[chunk])
        applied = [code for k, code in enumerate(self._filters) if not mask >> k & 1]
        wanted = math.prod(self._chunk) * self.dtype.itemsize
        try:
            for code in reversed(applied):
                if code == _DEFLATE:
                    packed = zlib.decompress(packed, bufsize=wanted)
                else:
                    of_bytes = np.frombuffer(packed, np.uint8).reshape(self.dtype.itemsize, -1)
                    packed = np.ascontiguousarray(of_bytes.T).reshape(-1)
            return np.frombuffer(packed, self.dtype).reshape(self._chunk)
        except (zlib.error, ValueError) as error:
            raise LoadingError(
                f"The chunk at byte {offset} of {self._file.path} is damaged ({error}). Write the "
                "file again."
            ) from error


class _Through:
    """A data set that only the HDF5 library can read."""

    def __init__(self, dataset: Any, path: Path):
        self.shape, self.dtype, self._dataset = dataset.shape, dataset.dtype, dataset
        self._path = path

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Returns a copy of the rows at `indices`, in that order."""
        found = np.empty((len(indices), *self.shape[1:]), self.dtype.newbyteorder("="))
        for places in runs(indices):
            first = int(indices[places[0]])
            try:
                found[places] = self._dataset[first : first + len(places)]
            except Exception as error:  # from the library, which does not name the file
                raise LoadingError(
                    f"Data set {self._dataset.name!r} of {shown(self._path)} cannot be read from "
                    f"row {first} on: {error}. Write the file again."
                ) from error
        return found


def _find(library: Any, name: str, file: OpenFile) -> Any:
    """Chooses how to read a data set."""
    import h5py  # pyright: ignore[reportMissingImports]

    dataset = library.get(name)
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(
            f"{shown(file.path)} has no data set {name!r}. Its top level holds: "
            f"{', '.join(library) or 'none'}."
        )
    try:
        dtype = dataset.dtype
    except Exception as error:
        raise ValueError(
            f"Data set {name!r} of {shown(file.path)} has elements that h5py cannot read: {error}. "
            "Store numbers of a dtype of NumPy."
        ) from error
    if not dataset.shape or dtype.hasobject:
        raise ValueError(
            f"Data set {name!r} of {shown(file.path)} is "
            f"{dtype}{list(dataset.shape or ())}, but samples are rows of "
            "numbers. Store arrays of a fixed size with at least one axis."
        )
    # The library converts integers and floats of other formats, plain reads do not.
    plain = dataset.id.get_type() == h5py.h5t.py_create(dtype, logical=True)
    plain &= os.path.samefile(dataset.file.filename, file.path)  # no external link
    plain &= library.userblock_size == 0 and not dataset.is_virtual and not dataset.external
    if plain and dataset.chunks is None and dataset.id.get_offset() is not None:
        return Rows(file, dataset.id.get_offset(), dataset.shape, dataset.dtype)
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(k)[0] for k in range(properties.get_nfilters())]
    known = set(filters) <= {_DEFLATE, _SHUFFLE} and hasattr(dataset.id, "chunk_iter")
    known &= dataset.dtype.subdtype is None  # elements that are arrays
    if plain and dataset.chunks is not None and known:
        return _Chunked(dataset, file, filters)
    log.warning(
        "Data set %r of %s is read by the HDF5 library, by one thread at a time: its layout or a "
        "filter is not one that jdaso reads itself (contiguous, or chunks with gzip and shuffle).",
        name,
        shown(file.path),
    )
    return _Through(dataset, file.path)


def _table(dataset: Any) -> _Table:
    found: list[Any] = []
    dataset.id.chunk_iter(found.append)
    found.sort(key=lambda chunk: chunk.chunk_offset)
    starts = np.array([x.chunk_offset for x in found], np.int64).reshape(len(found), -1)
    return _Table(
        starts if found else np.zeros((0, len(dataset.shape)), np.int64),
        np.array([x.byte_offset for x in found], np.int64),
        np.array([x.size for x in found], np.int64),
        np.array([x.filter_mask for x in found], np.uint32),
    )
