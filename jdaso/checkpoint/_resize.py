"""Restores a checkpoint of P nodes on P' nodes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from .._payload.layout import is_float
from .._session import Session
from ._arrays import read_arrays
from ._files import (
    COMMON,
    CheckpointError,
    DamagedError,
    Manifest,
    SavedLeaf,
    node_folder,
    plain_dtype,
)
from ._state import SavedValue, unlike

_NEW_NODES = zlib.crc32(b"jdaso: keys of nodes that a run did not have") & 0x7FFFFFFF
BEGUN_ANEW = {"ticket": 0, "drift": 0, "loss": 0, "since": 0, "lengths": 0}
"""Fields about exchanges in progress, and their values in a resized run, which starts with none."""

NEVER_STARTED = {**BEGUN_ANEW, "started": -1}
"""The same for a run whose nodes have no common point, but equal parameters: as its first cycling
update, the next one makes these the common point."""

OF_SEVERAL_NODES = frozenset({"lengths", "error"})
"""Fields that are empty in the state of a single node."""


def fit_leaves(
    saved: Sequence[SavedLeaf], here: Sequence[SavedValue], parted: int, *, partly: bool = False
) -> dict[str, SavedLeaf]:
    """Finds the saved leaf for each leaf of the state, by file name.

    Args:
        saved: leaves of the checkpoint.
        here: leaves of the state to restore into.
        parted: number of their local devices with replicas of their own.
        partly: whether the state may lack leaves of the checkpoint.

    Raises:
        CheckpointError: the trees differ.
    """
    of_path = {leaf.path: leaf for leaf in saved}
    fitting = {}
    for leaf, _ in here:
        other = of_path.pop(leaf.path, None)
        if other is None and leaf.field in OF_SEVERAL_NODES:
            continue
        if other is not None and other.dtype == leaf.dtype:
            if other.shape == leaf.shape or (parted and other.shape == (parted, *leaf.shape)):
                fitting[leaf.file] = other
                continue
        raise unlike(leaf, other)
    for leaf in of_path.values():
        if not partly and leaf.field not in OF_SEVERAL_NODES:
            raise CheckpointError(
                f"The checkpoint has a leaf {leaf.path}, {leaf}, which the state here lacks."
            )
    return fitting


def read_resized(folder: Path, fitting: dict[str, SavedLeaf], nodes: int) -> dict[str, np.ndarray]:
    """Combines the parts of all nodes: floats are averaged, the rest is node 0's.

    Means are formed in float64. Random keys are stacked, one per node.

    Raises:
        CheckpointError: a part is missing or damaged.
    """
    own = {file: leaf for file, leaf in fitting.items() if not leaf.common}
    found: dict[str, np.ndarray] = {}
    totals: dict[str, np.ndarray] = {}
    keys: dict[str, list[np.ndarray]] = {}
    wanted, first = set(fitting.values()), Manifest.read(folder, 0)
    for node in range(nodes):
        manifest = Manifest.read(folder, node)
        needed = [leaf for leaf in manifest.leaves if leaf in wanted]
        same = (manifest.run, manifest.number) == (first.run, first.number)
        if not same or len(needed) < len(wanted):
            raise DamagedError(f"{folder}: the parts of nodes 0 and {node} do not belong together.")
        manifest.verify(folder, leaves=needed)
        arrays: dict[str, np.ndarray] = {}
        for name, common in ((node_folder(node), False), (COMMON, True)):
            if node == 0 or not common:
                parts = [leaf for leaf in manifest.leaves if leaf.common == common]
                of_part = [leaf for leaf in needed if leaf.common == common]
                arrays |= read_arrays(folder, name, parts, of_part, manifest.small)
        if node == 0:
            found = {file: arrays[leaf.file] for file, leaf in fitting.items()}
        for file, leaf in own.items():
            array = arrays[leaf.file]
            if leaf.dtype.startswith("key<"):
                keys.setdefault(file, []).append(array)
            elif is_float(array.dtype):
                wide = np.complex128 if np.iscomplexobj(array) else np.float64
                totals[file] = totals.get(file, 0) + array.astype(wide)
    found |= {file: (x / nodes).astype(found[file].dtype) for file, x in totals.items()}
    return found | {file: np.stack(of_nodes) for file, of_nodes in keys.items()}


def spread(
    here: Sequence[SavedValue],
    fitting: dict[str, SavedLeaf],
    nodes: int,
    read: dict[str, np.ndarray],
    session: Session,
    *,
    node: int,
) -> dict[str, np.ndarray]:
    """Sends the arrays that node 0 has read to all nodes; returns them by file name.

    Random keys that differed become those of `node`, see `own_keys`.
    """
    found = {}
    for leaf, value in here:
        dtype = np.dtype(plain_dtype(leaf.dtype))
        if leaf.file not in fitting:
            found[leaf.file] = np.zeros(leaf.shape, dtype)
            continue
        key, shape = leaf.dtype.startswith("key<"), fitting[leaf.file].shape
        room = np.zeros((nodes, *shape) if key and not leaf.common else shape, dtype)
        array = session.control.broadcast(read.get(leaf.file, room))
        if key and not leaf.common:
            array = own_keys(array, jax.random.key_impl(value), node)
        elif array.shape != leaf.shape:  # an axis of local devices that had diverged
            array = array.mean(0, dtype=np.float64) if is_float(dtype) else array[0]
        if leaf.field in BEGUN_ANEW:
            array = np.zeros_like(array)
        found[leaf.file] = np.asarray(array, dtype)
    return found


def own_keys(of_nodes: np.ndarray, impl, number: int) -> np.ndarray:
    """Returns the key of a node: an old node's, or a new one if there are more nodes than before.

    Keys that were equal on all nodes stay equal.
    """
    if (of_nodes == of_nodes[0]).all():
        return of_nodes[0]
    turn, node = divmod(number, len(of_nodes))
    if turn == 0:
        return of_nodes[node]
    keys = jax.random.wrap_key_data(jnp.asarray(of_nodes[node]), impl=impl)
    # Two folds: `split` of the old node's key, which that node may use itself, is one fold.
    fold = lambda key: jax.random.fold_in(jax.random.fold_in(key, _NEW_NODES), turn)  # noqa: E731
    flat = jax.vmap(fold)(keys.reshape(-1))
    return np.asarray(jax.random.key_data(flat.reshape(keys.shape)))
