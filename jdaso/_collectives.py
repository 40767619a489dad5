"""What a training loop asks of all nodes at once: the same start, means, an exact end."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._blocking import exact_mean
from ._daso import DasoState
from ._exchange import Exchange
from ._local import mean_locally
from ._packing import describe, from_leaves, to_leaves
from ._session import Session
from ._types import PyTree
from ._wire import header


def broadcast(tree: PyTree, session: Session) -> PyTree:
    """Node 0's values on every node, for initial parameters.

    Args:
        tree: arrays of any dtype, of the same shapes on all nodes. With the simulated engine each
            has a leading axis of nodes, or is inside ``vmap`` over them.
        session: the nodes.

    Returns:
        The tree with node 0's values, each array placed as it was.

    Raises:
        NodeError: on all nodes, if shapes or dtypes differ.
        TypeError: inside ``jit``.

    Example:
        >>> import jax.numpy as jnp, jdaso
        >>> with jdaso.Session() as session:
        ...     params = jdaso.broadcast({"w": jnp.ones(2)}, session)
    """
    session.require_usable()
    if session.num_nodes == 1:
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
    return jax.tree.map(lambda x: _broadcast_leaf(x, session), tree)


def mean(tree: PyTree, session: Session, local_axis: str | None = None) -> PyTree:
    """Exact float32 mean over nodes, for metrics and BatchNorm statistics; waits for all nodes.

    Args:
        tree: float leaves are averaged, each in its own dtype; others stay as they are.
        session: the nodes.
        local_axis: inside ``shard_map`` or ``pmap``, the axis of the node's devices; these are
            averaged first.

    Returns:
        The mean, bitwise the same on all nodes.

    Raises:
        NodeError: on all nodes, if trees or shapes differ, or a node does not come.

    Example:
        >>> import jdaso
        >>> with jdaso.Session() as session:
        ...     accuracy = float(jdaso.mean(0.75, session))
    """
    session.require_usable()
    tree = mean_locally(tree, local_axis)
    if session.num_nodes == 1:
        return tree
    if _traced(tree):
        return _mean(tree, session, local_axis)
    if session.simulated:
        return jax.vmap(lambda x: _mean(x, session, None), axis_name=session.node_axis)(tree)
    _agree_on_shapes(session, "average a tree", tree)
    key = (jax.tree.structure(tree), describe(tree))
    if key not in session.programs:
        session.programs[key] = jax.jit(lambda x: _mean(x, session, None))
    result = session.programs[key](tree)
    return jax.block_until_ready(result)


def finalize(params: PyTree, opt_state: PyTree, session: Session) -> PyTree:
    """Ends a run wherever it stops: merges what is in flight, then takes the exact mean.

    Args:
        params: this node's parameters.
        opt_state: the optimizer state that goes with them, of a `daso` anywhere inside it or of
            any other optimizer. Discard it afterwards.
        session: the nodes.

    Returns:
        Parameters, bitwise the same on all nodes.

    Raises:
        NodeError: on all nodes, if they stopped at different steps, or a node does not come.
    """
    session.require_usable()
    if session.num_nodes == 1:
        return params
    is_daso = lambda x: isinstance(x, DasoState)  # noqa: E731
    states = [x for x in jax.tree.leaves(opt_state, is_leaf=is_daso) if is_daso(x)]
    stacked = any(np.ndim(state.step) == 1 for state in states)
    if stacked and not session.simulated:
        params = jax.tree.map(lambda x: x[0], params)
        states = jax.tree.map(lambda x: x[0], states)
    steps = [int(np.max(np.asarray(state.step))) for state in states]
    session.agree("finalize", [("the step of the optimizer state", str(steps))])
    for state in states:
        in_flight = int(np.max(np.asarray(state.ticket))) != 0
        if in_flight or jax.tree.leaves(state.error):
            params = _complete(params, state, in_flight, session)
    result = mean(params, session)
    if stacked and not session.simulated:
        devices = len(session.devices)
        result = jax.tree.map(lambda x: jnp.broadcast_to(x, (devices, *jnp.shape(x))), result)
    return result


def _complete(params: PyTree, state: DasoState, in_flight: bool, session: Session) -> PyTree:
    """Merges what one optimizer has in flight, and what its wire owes, into its own leaves."""
    paths, tree = jax.tree_util.tree_flatten_with_path(params)
    flat = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    optimizer = int(np.max(np.asarray(state.optimizer)))
    for (leaves, name), complete in session.completions.items():
        mine = [leaf.path for leaf in leaves if leaf.exchanged]
        if name != optimizer or not all(path in flat for path in mine):
            continue
        before = [flat[path] for path in mine]
        complete = partial(complete, in_flight=in_flight)
        if session.simulated:
            complete = jax.vmap(complete, axis_name=session.node_axis)
        try:
            after = jax.jit(complete)(to_leaves(before), state)
        except TypeError:
            continue
        flat |= dict(zip(mine, from_leaves(before, after), strict=True))
        return jax.tree.unflatten(tree, flat.values())
    raise session.control.error(
        "The optimizer state has an exchange in flight, but no optimizer of this session has "
        "parameters like the ones given. Pass the parameters that were given to tx.update."
    )


def _mean(tree: PyTree, session: Session, local_axis: str | None) -> PyTree:
    exchange = Exchange.of(tree, session, local_axis=local_axis, name="mean")
    step = jnp.zeros((), jnp.int32)
    return exact_mean(exchange, tree, header(step=step), step)[0]


def _traced(tree: PyTree) -> bool:
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(tree))


def _agree_on_shapes(session: Session, what: str, tree: PyTree) -> None:
    facts = [(f"leaf {leaf.path}", str(leaf)) for leaf in describe(tree)]
    session.agree(what, facts)


def _broadcast_leaf(x: Any, session: Session) -> Any:
    key = jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)
    values = session.control.broadcast(np.asarray(jax.random.key_data(x) if key else x))
    if key:
        return jax.random.wrap_key_data(jnp.asarray(values), impl=jax.random.key_impl(x))
    if not isinstance(x, jax.Array):
        return values
    # What JAX was free to move, it stays free to move: a step may want it on all local devices.
    return jax.device_put(values, x.sharding) if x.committed else jnp.asarray(values)
