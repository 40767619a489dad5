"""Arrays of a checkpoint on disk, as orbax writes them; small ones share a file.

Where several processes form one JAX world, orbax lets only the first write a NumPy array. There
each array is a file in NumPy's own format, in the folder that orbax would make.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import shutil
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ._files import SMALL, DamagedError, SavedLeaf, is_small, nbytes, plain_dtype

_PLAIN = "array.npy"


def write_arrays(
    folder: Path, name: str, arrays: Sequence[tuple[SavedLeaf, np.ndarray]]
) -> tuple[SavedLeaf, ...]:
    """Writes arrays to ``folder / name``; returns their leaves, small ones with a CRC.

    Each large array is a file, so that damage can be traced to a leaf. Small ones are joined to one
    array of bytes: file systems of clusters are slow with many small files.
    """
    shutil.rmtree(folder / name, ignore_errors=True)
    tree = {leaf.file: _as_written(leaf, array) for leaf, array in arrays if not is_small(leaf)}
    small = [array.tobytes() for leaf, array in arrays if is_small(leaf)]
    if any(small):
        tree[SMALL] = np.frombuffer(b"".join(small), np.uint8)
    if jax.process_count() > 1:
        for file, array in tree.items():
            (folder / name / file).mkdir(parents=True)
            np.save(folder / name / file / _PLAIN, array, allow_pickle=False)
    elif tree:
        with _checkpointer() as checkpointer:
            checkpointer.save(folder.absolute() / name, tree)
    sums = map(zlib.crc32, small)
    leaves = (leaf for leaf, _ in arrays)
    return tuple(dataclasses.replace(x, crc=next(sums)) if is_small(x) else x for x in leaves)


def read_arrays(
    folder: Path,
    name: str,
    leaves: Sequence[SavedLeaf],
    wanted: Sequence[SavedLeaf],
    known: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Reads arrays of ``folder / name``; call `Manifest.verify` first.

    Args:
        folder: of the checkpoint.
        name: the part to read.
        leaves: all leaves that were written there.
        wanted: the leaves to read.
        known: `Manifest.small`, to which the part's small arrays are added: they share a file, from
            which a restore reads leaves many times.

    Returns:
        The arrays, by `SavedLeaf.file`.

    Raises:
        DamagedError: orbax cannot read an array, or it differs from the manifest.
    """
    large = [leaf for leaf in leaves if not is_small(leaf)]
    small = [leaf for leaf in leaves if is_small(leaf)]
    ends = list(itertools.accumulate((nbytes(leaf) for leaf in small), initial=0))
    files = {leaf.file for leaf in wanted}
    names = [leaf.file for leaf in large if leaf.file in files]
    if ends[-1] and name not in known and any(leaf.file in files for leaf in small):
        names.append(SMALL)
    partly = len(names) < len(large) + bool(ends[-1])
    plain = any((folder / name / file / _PLAIN).exists() for file in names)
    try:
        found = _read_plain(folder / name, names) if plain else _read(folder / name, names, partly)
    except Exception as error:  # from orbax, tensorstore or libraries below them
        raise DamagedError(f"{folder / name} cannot be read: {error}") from error
    if SMALL in found:
        known[name] = np.array(found.pop(SMALL))  # a file that is mapped could not be removed
    packed = known.get(name, np.zeros(0, np.uint8))
    for leaf, begin, end in zip(small, ends, ends[1:], strict=False):
        if leaf.file not in files:
            continue
        if packed.shape != (ends[-1],):
            raise DamagedError(f"{folder / name}: its small leaves differ in size.")
        array = np.array(packed[begin:end]).view(plain_dtype(leaf.dtype))
        found[leaf.file] = array.reshape(leaf.shape)
    for leaf in wanted:
        array = found[leaf.file]
        if not is_small(leaf) and _is_foreign(leaf):
            array = found[leaf.file] = array.view(plain_dtype(leaf.dtype)).reshape(leaf.shape)
        if plain and array.dtype.kind == "V":  # a dtype that NumPy does not know, such as bfloat16
            array = found[leaf.file] = array.view(plain_dtype(leaf.dtype))
        if (array.shape, array.dtype) != (leaf.shape, np.dtype(plain_dtype(leaf.dtype))):
            raise DamagedError(f"{folder / name}, leaf {leaf.path}: its shape differs.")
    return found


def _is_foreign(leaf: SavedLeaf) -> bool:
    """Returns whether tensorstore, below orbax, does not know a dtype."""
    dtype = np.dtype(plain_dtype(leaf.dtype))
    long = dtype in (np.dtype(np.longdouble), np.dtype(np.clongdouble))
    return dtype.kind in "mM" or long or dtype.name in ("int2", "uint2", "uint4")


def _as_written(leaf: SavedLeaf, array: np.ndarray) -> np.ndarray:
    """An array as orbax writes it: its bytes, if the dtype is foreign."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8) if _is_foreign(leaf) else array


def _read(path: Path, names: Sequence[str], partly: bool) -> dict[str, Any]:
    """Reads arrays that orbax has written.

    Args:
        path: their folder.
        names: the names of the arrays.
        partly: whether there are others.
    """
    if not names:
        return {}
    ocp = _orbax()
    args = ocp.args.PyTreeRestore(
        item=dict.fromkeys(names, 0),
        restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names},
        transforms={} if partly else None,  # makes orbax skip leaves that are not wanted
    )
    with _checkpointer() as checkpointer:
        return checkpointer.restore(path.absolute(), args=args)


def _read_plain(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Reads arrays in NumPy's format, each page at its first use."""
    load = partial(np.load, mmap_mode="r", allow_pickle=False)
    return {name: load(path / name / _PLAIN) for name in names}


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(
            f'Checkpoints need orbax-checkpoint ({error}). Run pip install "jdaso[checkpoint]".'
        ) from error
    return ocp


@contextlib.contextmanager
def _checkpointer():
    ocp, absl = _orbax(), logging.getLogger("absl")
    absl.addFilter(_is_news)
    about = {}
    if jax.process_count() > 1:  # each process reads alone
        me = jax.process_index()
        about["multiprocessing_options"] = ocp.options.MultiprocessingOptions(
            primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"jdaso.{me}"
        )
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_compression=False, **about)
    checkpointer = ocp.Checkpointer(handler, **about)
    try:
        yield checkpointer
    finally:
        checkpointer.close()
        absl.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Returns whether a message of orbax is other than its known, harmless ones."""
    asked = "Skipping merge of OCDBT", "The transformations API will eventually", "ts_context=None"
    return not any(text in str(record.msg) for text in asked)
