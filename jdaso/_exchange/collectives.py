"""Collective calls of a training loop: node 0's values on all nodes, and means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._base.errors import NodeError
from .._jax.axes import bound_axes
from .._jax.host_call import unmapped
from .._jax.in_trace import place_in_trace
from .._jax.types import LocalAxis, PyTree
from .._jax.world import SPANS_PROCESSES, spans_processes
from .._payload.explicit import on_its_mesh
from .._payload.header import header
from .._payload.layout import describe, is_float, path_of
from .._payload.placement import Placement, divisions_of, kept
from .._session import Session
from .exact import About, exact_mean
from .make import exchange_of
from .order import after_last, note_last, token_of
from .placing import agree_on_shards, axes_of, facts_of, placed, said
from .within_node import mean_locally, refuse_other_axes


def require_own_devices(session: Session, tree: PyTree) -> None:
    """Raises unless arrays lie on this node's devices; each rank that has such an array raises.

    An array that JAX may still move ("uncommitted", or of NumPy) is taken for a copy of what every
    rank of the node has.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if spans_processes(leaf) and not session.joined:
            text = f"Leaf {path_of(path)} {SPANS_PROCESSES}"
        elif session.joined and _is_of_one_rank(leaf):
            text = (
                f"Leaf {path_of(path)} lies on devices of this rank only, and the node has "
                f"{session.ranks_per_node} ranks. Put it on all its devices: jax.device_put(x, "
                "NamedSharding(session.mesh, PartitionSpec())), or another spec."
            )
        else:
            continue
        raise NodeError(f"{session.topology.prefix()} {text}")


def _is_of_one_rank(x: Any) -> bool:
    """Returns whether an array was put on devices of this rank alone."""
    concrete = isinstance(x, jax.Array) and not isinstance(x, Tracer)
    return concrete and x.committed and not spans_processes(x)


def broadcast(tree: PyTree, session: Session) -> PyTree:
    """Returns node 0's values on every node, for initial parameters.

    Args:
        tree: arrays of any dtype, of the same shapes on all nodes. With the simulated engine
            each has a leading axis of nodes, or the call is inside ``vmap`` over the nodes.
        session: the nodes.

    Returns:
        The tree with node 0's values, each array placed as it was.

    Raises:
        NodeError: on all nodes, if shapes, dtypes or divisions over devices differ.
        TypeError: inside ``jit``.

    Example:
        >>> import jax.numpy as jnp, jdaso
        >>> with jdaso.Session() as session:
        ...     params = jdaso.broadcast({"w": jnp.ones(2)}, session)
    """
    session.require_usable()
    if session.num_nodes == 1 and not session.joined:
        return tree
    if session.simulated:
        if _traced(tree):
            return jax.tree.map(lambda x: jax.lax.all_gather(x, session.node_axis)[0], tree)
        return jax.tree.map(lambda x: jnp.broadcast_to(x[:1], jnp.shape(x)), tree)
    if _traced(tree):
        raise TypeError(
            "jdaso.broadcast takes arrays, got tracers: call it outside of jax.jit, before "
            "training begins."
        )
    _agree_on_shapes(session, "broadcast a tree", tree)
    flat = zip(describe(tree), jax.tree.leaves(tree), strict=True)
    # NumPy's float64 is float32 to JAX, but has twice the bytes.
    dtypes = [(f"the dtype of leaf {leaf.path}", _dtype(x)) for leaf, x in flat]
    session.agree("broadcast a tree", dtypes)
    return session.control.repeat_if_a_node_fails(
        lambda: jax.tree.map(lambda x: _broadcast_leaf(x, session), tree)
    )


@on_its_mesh
def mean(
    tree: PyTree, session: Session, local_axis: LocalAxis = None, *, sharded: PyTree = None
) -> PyTree:
    """Exact float32 mean over nodes, for metrics and BatchNorm statistics; waits for all nodes.

    Args:
        tree: float leaves are averaged, each in its own dtype; others stay as they are. If a node
            has several ranks, leaves that do not lie on all of these are averaged over all ranks.
        session: the nodes.
        local_axis: inside ``shard_map`` or ``pmap``, the axis of the node's devices (or a tuple of
            axes), which is averaged first.
        sharded: `PartitionSpec` of each leaf, a tree like `tree` or a prefix of one, if leaves
            are divided over the node's devices. Needed inside ``shard_map``, and inside ``jit`` on
            a mesh with Auto axes.

    Returns:
        The mean, bitwise the same on all nodes.

    Raises:
        NodeError: on all nodes, if trees, shapes or divisions over devices differ, or a node failed
            or timed out.

    Example:
        >>> import jdaso
        >>> with jdaso.Session() as session:
        ...     accuracy = float(jdaso.mean(0.75, session))
    """
    session.require_usable()
    tree = mean_locally(tree, local_axis)
    if session.joined and not _traced(tree):
        return _mean_of_each(tree, session)
    return _mean_of_nodes(tree, session, local_axis, sharded)


def _mean_of_nodes(
    tree: PyTree, session: Session, local_axis: LocalAxis = None, sharded: PyTree = None
) -> PyTree:
    """See `mean`; of arrays on all devices of each node."""
    if session.num_nodes == 1:
        return tree
    if session.sends:
        refuse_other_axes(local_axis, "jdaso.mean", sharded=axes_of(sharded))
    if _traced(tree):
        if session.sends:
            tree = jax.tree.map(unmapped, tree)
        placement = _placement(tree, session, local_axis, sharded)
        return _mean(tree, session, local_axis, placement)
    if session.simulated:
        mean_of = lambda x: _mean(x, session, None, None)  # noqa: E731
        return jax.vmap(mean_of, axis_name=session.node_axis)(tree)
    _agree_on_shapes(session, "average a tree", tree)
    placement = placed(session, tree)
    key = (jax.tree.structure(tree), describe(tree), placement)

    def compiled() -> Callable[[PyTree], PyTree]:
        mean_of = lambda x: _mean(x, session, None, placement)  # noqa: E731
        return jax.jit(mean_of, out_shardings=kept(tree) if placement else None)

    program = session.optimizers.program(key, compiled)
    with session.told():
        return jax.block_until_ready(program(tree))


def _mean_of_each(tree: PyTree, session: Session) -> PyTree:
    """The mean of each leaf over nodes, or over all ranks if each rank has its own."""
    on_node = jax.tree.map(lambda x: x if spans_processes(x) else None, tree)
    of_rank = jax.tree.map(lambda x: None if spans_processes(x) else x, tree)
    found = []
    for mean_of, part in ((_mean_of_ranks, of_rank), (_mean_of_nodes, on_node)):
        leaves = jax.tree.leaves(part)
        found.append(iter(jax.tree.leaves(mean_of(part, session)) if leaves else leaves))
    return jax.tree.map(lambda x: next(found[spans_processes(x)]), tree)


def _mean_of_ranks(tree: PyTree, session: Session) -> PyTree:
    """The mean over all ranks of each rank's own trees."""
    facts = [(f"leaf {leaf.path}", str(leaf)) for leaf in describe(tree)]
    session.agree("average a tree", facts)

    def mean_of(x: Any) -> Any:
        dtype = jnp.result_type(x)
        if not is_float(dtype):
            return x
        wide = np.complex128 if jnp.issubdtype(dtype, jnp.complexfloating) else np.float64
        mine = np.asarray(x).astype(wide)
        rows = session.all_ranks.allgather("average a tree", mine)
        mean = rows.mean(axis=0).reshape(np.shape(x)).astype(dtype)
        return _back(mean, x if isinstance(x, jax.Array) else jnp.asarray(x))

    return jax.tree.map(mean_of, tree)


def _mean(
    tree: PyTree, session: Session, local_axis: LocalAxis, placement: Placement | None
) -> PyTree:
    about = {"local_axis": local_axis, "placement": placement}
    # Means in several functions of a step have no order: each has a channel of its own.
    name = f"mean {place_in_trace()}"
    exchange = exchange_of(tree, session, name=name, **about)
    step = after_last(session, jnp.zeros((), jnp.int32))
    found, received = exact_mean(exchange, tree, About(header(step=step), step))
    note_last(session, token_of(received.heads))
    return found


def _traced(tree: PyTree) -> bool:
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(tree))


def _placement(
    tree: PyTree, session: Session, local_axis: LocalAxis, sharded: PyTree
) -> Placement | None:
    """The placement of a traced tree: that of its types, else the user's."""
    if not session.sends:
        return None
    if not bound_axes() and (found := placed(session, tree)) is not None:
        return found
    if sharded is None:
        return None
    told = lambda axes, inside: divisions_of(sharded, tree, axes, inside=inside)  # noqa: E731
    return said(session, local_axis, axes_of(sharded), told)


def _agree_on_shapes(session: Session, what: str, tree: PyTree) -> None:
    facts = [(f"leaf {leaf.path}", str(leaf)) for leaf in describe(tree)]
    if session.sends:
        facts += facts_of(placed(session, tree), tree)
    require_own_devices(session, tree)
    session.agree(what, facts)
    if session.joined:
        agree_on_shards(session, what, tree)


def _dtype(x: Any) -> str:
    return str(x.dtype if isinstance(x, jax.Array) else np.asarray(x).dtype)


def _broadcast_leaf(x: Any, session: Session) -> Any:
    key = jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)
    numbers = jax.random.key_data(x) if key else x
    if spans_processes(numbers):
        found = _broadcast_shards(numbers, session)
    else:
        found = _back(session.all_ranks.broadcast(np.asarray(numbers)), numbers)
    return (
        jax.random.wrap_key_data(jnp.asarray(found), impl=jax.random.key_impl(x)) if key else found
    )


def _broadcast_shards(x: jax.Array, session: Session) -> jax.Array:
    """An array on the devices of several ranks, of which each sends the shards that it has."""
    known: dict[str, np.ndarray] = {}
    made = []
    for shard in x.addressable_shards:
        place = str(shard.index)
        if place not in known:
            known[place] = session.control.broadcast(np.asarray(shard.data))
        made.append(jax.device_put(known[place], shard.device))
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, made)


def _back(values: np.ndarray, x: Any) -> Any:
    """New values of an array, placed as it was."""
    if not isinstance(x, jax.Array):
        return values
    # An uncommitted array stays uncommitted: a step may want it on all local devices.
    return jax.device_put(values, x.sharding) if x.committed else jnp.asarray(values)
