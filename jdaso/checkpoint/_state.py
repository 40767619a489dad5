"""A training state as host arrays, and back: its leaves, and which of them all nodes share."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import spans_processes
from .._engines.version import Version
from .._engines.versions import COMMON, Versions
from .._optimizers.agree import is_in_parts
from .._optimizers.state import DasoState
from .._optimizers.synchronous import SynchronousState
from .._payload.layout import path_of
from .._session import Session
from .._types import PyTree
from ._files import CheckpointError, DamagedError, Leaf
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


class Value(NamedTuple):
    """One leaf of a state, and how it is saved."""

    leaf: Leaf
    value: Any


class Kept(NamedTuple):
    """Numbers of a fragment's late exchange that the host holds; a save waits for the result."""

    owner: int
    fragment: int
    ticket: int
    in_flight: bool
    versions: Versions
    version: Version


def values_of(state: PyTree, *, shares: bool, parted: int = 0) -> list[Value]:
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
        if array.dtype.kind in "OUS":
            raise CheckpointError(
                f"Leaf {where} is a {type(value).__name__}, but a checkpoint holds only numbers. "
                "Leave it out of the state."
            )
        shape = tuple(np.shape(array))
        if parted and _devices(value) == parted:
            shape = (parted, *shape)
        file = _file_name(simple, names)
        common = common and shares
        leaf = Leaf(where, file, _dtype(value), shape, common, field)
        if is_in_parts(array) or (spans_processes(array) and not common):
            leaf = leaf_of_pieces(leaf, array, len(found))
        found.append(Value(leaf, value))
    return found


def parted_devices(state: PyTree, session: Session) -> int:
    """Returns the number of local devices with replicas of their own; 0 if they are equal."""
    drifts = [int(np.max(np.asarray(x.drift))) for x in _dasos(state)]
    if session.joined and any(drifts):
        raise CheckpointError(
            "The devices of this node have diverged (local_every > 1), and a node of several ranks "
            "cannot save that. Save after a step in which they were averaged."
        )
    return len(session.devices) if len(session.devices) > 1 and any(drifts) else 0


def to_host(value: Value, buffer: np.ndarray | None) -> np.ndarray:
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


def from_host(value: Value, array: np.ndarray, mesh: jax.sharding.Mesh) -> Any:
    """Returns a saved array as the leaf it replaces: its type, sharding and devices.

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
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        pairs = zip(array, mesh.devices.flat, strict=True)
        shards = [jax.device_put(x, device) for x, device in pairs]
        return jax.make_array_from_single_device_arrays(like.shape, everywhere, shards)
    if like.committed:
        return jax.device_put(array, like.sharding)
    if like.weak_type and array.ndim == 0:
        return jnp.asarray(array.item())
    return jnp.asarray(array)


def check_leaves(saved: Sequence[Leaf], here: Sequence[Value], parted: int) -> None:
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
            raise CheckpointError(
                f"Leaf {leaf.path} is {other} in the checkpoint and {leaf} here. Restore into a "
                "state of the program that saved it."
            )
    if of_path:
        path, leaf = next(iter(of_path.items()))
        raise CheckpointError(
            f"The checkpoint has a leaf {path}, {leaf}, which the state here lacks. Restore "
            "into a state of the program that saved it."
        )


def keep_flights(state: PyTree, session: Session) -> list[Kept]:
    """Returns what the host holds of a state's late exchanges.

    Raises:
        CheckpointError: this session did not start one of them.
    """
    found: list[Kept] = []
    if session.simulated or session.num_nodes == 1:  # there the state itself holds it
        return found
    for owner, fragment, ticket, in_flight in _tickets(state):
        for versions in _versions(session, owner, fragment):
            begun = ticket or versions.kept(0, owner, in_flight=False)
            if not (in_flight or (versions.anchored and begun)):
                break
            known = any(x.versions is versions and x.ticket == ticket for x in found)
            version = None if known else versions.kept(ticket, owner, in_flight=in_flight)
            if version is not None:
                found.append(Kept(owner, fragment, ticket, in_flight, versions, version))
                break
        else:
            raise CheckpointError(
                f"The state goes on from an exchange (ticket {ticket}) that this session did not "
                "start. Save the state that the last update returned."
            )
    return found


def is_flight(leaf: Leaf) -> bool:
    """Returns whether a leaf belongs to an exchange in flight, not to the state."""
    return leaf.path.startswith("<")


def flight_arrays(number: int, kept: Kept, *, shares: bool) -> list[tuple[Leaf, np.ndarray]]:
    """Returns what `keep_flights` has found, as arrays to save; see `values_of`."""
    found = []
    for name, array in kept.versions.saved(kept.version, in_flight=kept.in_flight).items():
        file, common = f"exchange{number}.{name}", shares and name.startswith(COMMON)
        found.append((Leaf(f"<{file}>", file, str(array.dtype), array.shape, common), array))
    return found


def describe_layout(versions: Versions) -> str:
    """Returns a text that differs if the numbers of one layout cannot be read as another's."""
    leaves = ", ".join(f"{leaf.path} {leaf}" for leaf in versions.saved_layout.leaves)
    return f"{versions.wire.name}, {versions.rule.name}, leaves {leaves}"


def flights_fit(session: Session, flights: Sequence[tuple[int, int, int, bool, str]]) -> bool:
    """Returns whether `adopt_flights` finds an optimizer for each of them."""
    # All before the first is compared: they open channels, in which all ranks take part.
    found = [_versions(session, owner, fragment) for owner, fragment, *_ in flights]
    pairs = zip(found, flights, strict=True)
    return all(any(describe_layout(x) == layout for x in each) for each, (*_, layout) in pairs)


def adopt_flights(
    session: Session,
    flights: Sequence[tuple[int, int, int, bool, str]],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Gives the host what it held of saved exchanges, to go on with.

    Args:
        session: the nodes.
        flights: see `Manifest`.
        arrays: the saved arrays, by file.

    Raises:
        CheckpointError: no optimizer here has such exchanges.
    """
    for number, (owner, fragment, ticket, in_flight, layout) in enumerate(flights):
        fitting = [x for x in _versions(session, owner, fragment) if describe_layout(x) == layout]
        if not fitting:
            raise CheckpointError(
                f"The checkpoint has an exchange of optimizer {owner} in flight that no optimizer "
                f"here could have started: {layout}. Make the optimizers as the run did that saved "
                "it; if it cut divided parameters into fragments, divide them over devices as it "
                "did."
            )
        begin = f"exchange{number}."
        saved = {k.removeprefix(begin): x for k, x in arrays.items() if k.startswith(begin)}
        try:
            fitting[0].adopt(ticket, owner, saved, in_flight=in_flight)
        except (ValueError, KeyError) as error:
            raise DamagedError(
                f"An exchange in flight does not have the size of its layout ({error})."
            ) from error


def require_common_points(session: Session, nodes: int) -> None:
    """Raises if optimizers here need a common point, which the run of a single node has not saved.

    Raises:
        CheckpointError: see above.
    """
    several = session.num_nodes > 1 and not session.simulated
    if nodes == 1 and several and any(x.anchored for x in session.completions.values()):
        raise CheckpointError(
            "The checkpoint was saved by one node, which has no point common to all nodes, and "
            'narrow wires and outer optimizers need one. Use merge="corrected" or "paper" with '
            'wire="float32", or a single node.'
        )


def _versions(session: Session, owner: int, fragment: int) -> list[Versions]:
    """Returns the versions of a fragment of one optimizer; all nodes call this together."""
    completions = [x for (number, _), x in session.completions.items() if number == owner]
    found = [dict(enumerate(x.versions())) for x in completions]
    return [of_one[fragment] for of_one in found if fragment in of_one]


def _dasos(state: PyTree) -> list[DasoState]:
    is_daso = lambda x: isinstance(x, DasoState)  # noqa: E731
    return [x for x in jax.tree.leaves(state, is_leaf=is_daso) if is_daso(x)]


def _tickets(state: PyTree) -> list[tuple[int, int, int, bool]]:
    """Returns (optimizer, fragment, last ticket or 0, whether in flight) for each fragment."""
    found = []
    for daso in _dasos(state):
        owner, fragments = int(np.max(np.asarray(daso.optimizer))), np.shape(daso.ticket)[-1]
        pairs = (np.asarray(x).reshape(-1, fragments).max(0) for x in (daso.started, daso.ticket))
        for f, (started, ticket) in enumerate(zip(*pairs, strict=True)):
            found.append((owner, f, int(started) + 1, bool(ticket)))
    return found


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


def data_of(value: Any) -> Any:
    """Returns a leaf as an array with a NumPy dtype."""
    if _is_key(value):
        return jax.random.key_data(value)
    return value if isinstance(value, jax.Array | np.ndarray) else np.asarray(value)


def _dtype(value: Any) -> str:
    return str(value.dtype) if _is_key(value) else str(data_of(value).dtype)


def _file_name(path: str, taken: set[str]) -> str:
    """Returns a file name that any file system accepts and no other leaf has."""
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", path).strip(".") or "leaf"
    if len(name) > 120:
        name = f"{name[:100]}-{zlib.crc32(path.encode()):08x}"
    number, plain = 1, name
    while name.lower() in taken:
        number, name = number + 1, f"{plain}~{number}"
    taken.add(name.lower())
    return name
