"""A training state as host arrays, and back: its leaves, and which of them all nodes share."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.types import PyTree
from .._jax.world import spans_processes
from .._optimizers.agree import is_in_parts
from .._optimizers.state import DasoState, SynchronousState
from .._payload.layout import path_of
from .._session import Session
from ._files import CheckpointError, SavedLeaf
from ._pieces import leaf_of_pieces, pieces_of

# Fields that are the same on all nodes at every step; node 0 writes them for all nodes.
_COMMON = {
    DasoState: {
        "optimizer",
        "step",
        "ticket",
        "started",
        "delay",
        "drift",
        "phase",
        "weight",
        "scale",
    },
    SynchronousState: {"step", "inner", "weight"},
}


class _Field(NamedTuple):
    """The field of a jdaso state that a leaf belongs to."""

    name: str
    common: bool


class SavedValue(NamedTuple):
    """One leaf of a state, and how it is saved."""

    leaf: SavedLeaf
    value: Any


def values_of(state: PyTree, *, shares: bool, parted: int = 0) -> list[SavedValue]:
    """Returns the leaves of a state.

    Args:
        state: any tree.
        shares: whether nodes have leaves in common.
        parted: number of local devices whose replicas differ (`local_every`); 0 if they do not.
    """
    flat = jax.tree_util.tree_flatten_with_path(state)[0]
    fields = jax.tree.leaves(
        jax.tree.map(_fields_of, state, is_leaf=_is_ours), is_leaf=lambda x: isinstance(x, _Field)
    )
    names: set[str] = set()
    found = []
    for (path, value), (field, common) in zip(flat, fields, strict=True):
        where = path_of(path)
        simple = jax.tree_util.keystr(path, simple=True, separator=".")
        array = data_of(value)
        if array.dtype.kind in "OUS" or array.dtype.names is not None:
            raise CheckpointError(
                f"Leaf {where} is a {type(value).__name__}, but a checkpoint holds only numbers. "
                "Leave it out of the state."
            )
        shape = tuple(np.shape(array))
        if parted and _holds_copies_of_parts(value):
            raise CheckpointError(
                f"The devices of this node have diverged (local_every > 1), and leaf {where} is "
                "divided over some of them, with copies on others: a checkpoint holds one. "
                "Save after a step in which they were averaged."
            )
        if parted and _devices(value) == parted:
            shape = (parted, *shape)
        file = _file_name(simple, names)
        common = common and shares
        leaf = SavedLeaf(where, file, _dtype(value), shape, common, field)
        if is_in_parts(array) or (spans_processes(array) and not common):
            leaf = leaf_of_pieces(leaf, array, len(found))
        found.append(SavedValue(leaf, value))
    return found


def parted_devices(state: PyTree, session: Session) -> int:
    """Returns the number of local devices with replicas of their own; 0 if they are equal."""
    drifts = [int(np.max(np.asarray(x.drift))) for x in dasos_in(state)]
    if session.joined and any(drifts):
        raise CheckpointError(
            "The devices of this node have diverged (local_every > 1), and a node of several ranks "
            "cannot save that. Save after a step in which they were averaged."
        )
    return len(session.devices) if len(session.devices) > 1 and any(drifts) else 0


def to_host(value: SavedValue, buffer: np.ndarray | None) -> np.ndarray:
    """Copies a leaf to the host, into `buffer` if it fits there."""
    array = data_of(value.value)
    if value.leaf.whole is not None:
        return pieces_of(value.leaf, array)
    if value.leaf.shape != tuple(np.shape(array)):
        array = np.stack([np.asarray(shard.data) for shard in array.addressable_shards])
    array = np.asarray(array)
    if buffer is None or buffer.shape != array.shape or buffer.dtype != array.dtype:
        return np.array(array)
    np.copyto(buffer, array)
    return buffer


def from_host(value: SavedValue, array: np.ndarray, mesh: jax.sharding.Mesh) -> Any:
    """Returns a saved array like the leaf it replaces, with its type, sharding and devices.

    If local devices had diverged, each device of `mesh` gets its own array.
    """
    like = value.value
    if not isinstance(like, jax.Array):
        if isinstance(like, np.ndarray):
            return array
        return type(like)(array.item())
    if value.leaf.dtype.startswith("key<"):
        keys = jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
        return jax.device_put(keys, like.sharding) if like.committed else keys
    if array.shape != like.shape:
        everywhere: Any = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        devices = list(mesh.devices.flat)
        if _devices(like) == len(array):  # in the order of its own mesh, as they were saved
            everywhere = like.sharding
            devices = [shard.device for shard in like.addressable_shards]
        shards = [jax.device_put(x, device) for x, device in zip(array, devices, strict=True)]
        return jax.make_array_from_single_device_arrays(like.shape, everywhere, shards)
    if like.committed:
        return jax.device_put(array, like.sharding)
    if like.weak_type and array.ndim == 0:
        return jnp.asarray(array.item())
    return jnp.asarray(array)


def check_leaves(saved: Sequence[SavedLeaf], here: Sequence[SavedValue], parted: int) -> None:
    """Compares a checkpoint with the state to restore into.

    If `parted` devices had replicas of their own, saved arrays have an axis of devices.

    Raises:
        CheckpointError: trees, shapes or dtypes differ; names the leaf.
    """
    of_path = {leaf.path: leaf for leaf in saved}
    for leaf, _ in here:
        other = of_path.pop(leaf.path, None)
        if other is None:
            raise CheckpointError(
                f"The checkpoint has no leaf {leaf.path}, which is {leaf} here. Restore into a "
                "state of the program that saved it."
            )
        if other != leaf and other != leaf.of_devices(parted):
            raise unlike(leaf, other)
    if of_path:
        path, leaf = next(iter(of_path.items()))
        raise CheckpointError(
            f"The checkpoint has a leaf {path}, {leaf}, which the state here lacks. Restore "
            "into a state of the program that saved it."
        )


def unlike(leaf: SavedLeaf, saved: SavedLeaf | None) -> CheckpointError:
    """The error for a leaf of the state that the checkpoint does not have, or has otherwise."""
    said = "absent" if saved is None else str(saved)
    text = f"Leaf {leaf.path} is {said} in the checkpoint and {leaf} here. "
    if leaf.field != "ticket" or saved is None or saved.dtype != leaf.dtype:
        return CheckpointError(text + "Restore into a state of the program that saved it.")
    count = saved.shape[-1] if saved.shape else 1
    return CheckpointError(
        f"{text}The program that saved it had fragments={count}. Give Phases(fragments={count}, "
        "...), or divide the parameters over the node's devices as that program did."
    )


def is_flight(leaf: SavedLeaf) -> bool:
    """Returns whether a leaf belongs to an exchange in flight, not to the state."""
    return leaf.path.startswith("<")


def dasos_in(state: PyTree) -> list[DasoState]:
    """Returns the states of `daso` in a state."""
    is_daso = lambda x: isinstance(x, DasoState)  # noqa: E731
    return [x for x in jax.tree.leaves(state, is_leaf=is_daso) if is_daso(x)]


def _is_ours(x: Any) -> bool:
    return type(x) in _COMMON


def _fields_of(x: Any) -> Any:
    """Returns, for each leaf of a jdaso state, the field that it belongs to."""
    if not _is_ours(x):
        return _Field("", common=False)
    fields = (_Field(name, name in _COMMON[type(x)]) for name in x._fields)
    return [jax.tree.map(lambda _, y=y: y, getattr(x, y.name)) for y in fields]


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _devices(value: Any) -> int:
    """Returns the number of devices that hold a replica."""
    if not isinstance(value, jax.Array) or _is_key(value) or not value.is_fully_replicated:
        return 0
    return len(value.sharding.device_set)


def _holds_copies_of_parts(value: Any) -> bool:
    """Returns whether an array is divided, and several devices have the same part of it."""
    if not isinstance(value, jax.Array) or _is_key(value) or value.is_fully_replicated:
        return False
    parts = value.sharding.devices_indices_map(value.shape).values()
    return len({str(part) for part in parts}) < len(value.sharding.device_set)


def data_of(value: Any) -> Any:
    """Returns a leaf as an array with a NumPy dtype."""
    if _is_key(value):
        return jax.random.key_data(value)
    if isinstance(value, jax.Array):
        return value
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _dtype(value: Any) -> str:
    return str(value.dtype) if _is_key(value) else str(data_of(value).dtype)


_RESERVED = re.compile(
    r"checkpoint|_metadata|_checkpoint_metadata|_sharding|_strings\.json|commit_success\.txt|"
    r"array_metadatas|descriptor|manifest\.ocdbt|jdaso\.small|exchange\d+\..*"
)
"""Names that orbax and jdaso use in the folder of arrays."""


def _file_name(path: str, taken: set[str]) -> str:
    """Returns a file name that any file system accepts, and that nothing else has."""
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", path).strip(".") or "leaf"
    if len(name) > 120:
        name = f"{name[:100]}-{zlib.crc32(path.encode()):08x}"
    if _RESERVED.fullmatch(name.lower()):
        name = f"leaf.{name}"
    number, plain = 1, name
    while name.lower() in taken:
        number, name = number + 1, f"{plain}~{number}"
    taken.add(name.lower())
    return name
