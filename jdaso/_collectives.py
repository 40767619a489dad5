"""What a training loop asks of all nodes at once: the same start, means, an exact end."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._agreement import require_own_devices
from ._averaging import DasoState
from ._blocking import exact_mean, exact_mean_of_finite
from ._compat import unmapped
from ._exchange import Exchange
from ._header import header
from ._local import mean_locally, refuse_other_axes
from ._packing import Leaf, describe, from_leaves, is_float, to_leaves
from ._session import Session
from ._types import LocalAxis, PyTree


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
    return session.control.unless_someone_dies(
        lambda: jax.tree.map(lambda x: _broadcast_leaf(x, session), tree)
    )


def mean(tree: PyTree, session: Session, local_axis: LocalAxis = None) -> PyTree:
    """Exact float32 mean over nodes, for metrics and BatchNorm statistics; waits for all nodes.

    Args:
        tree: float leaves are averaged, each in its own dtype; others stay as they are.
        session: the nodes.
        local_axis: inside ``shard_map`` or ``pmap``, the axis of the node's devices (or a tuple of
            axes); these are averaged first.

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
    if session.sends:
        refuse_other_axes(local_axis, "jdaso.mean")
    if _traced(tree):
        if session.sends:
            tree = jax.tree.map(unmapped, tree)
        return _mean(tree, session, local_axis)
    if session.simulated:
        return jax.vmap(lambda x: _mean(x, session, None), axis_name=session.node_axis)(tree)
    _agree_on_shapes(session, "average a tree", tree)
    key = (jax.tree.structure(tree), describe(tree))
    if key not in session.programs:
        session.programs[key] = jax.jit(lambda x: _mean(x, session, None))
    with session.told():
        return jax.block_until_ready(session.programs[key](tree))


def finalize(params: PyTree, opt_state: PyTree, session: Session) -> PyTree:
    """Ends a run wherever it stops: merges what is in flight, then takes the exact mean.

    Args:
        params: this node's parameters; inside ``pmap`` or ``shard_map`` over its devices with a
            first axis of devices, as they are held there.
        opt_state: the optimizer state that goes with them, of a `daso` anywhere inside it or of
            any other optimizer. Discard it afterwards.
        session: the nodes.

    Returns:
        Parameters, bitwise the same on all nodes.

    Raises:
        NodeError: on all nodes, if they stopped at different steps, a node does not come, or one
            holds numbers that are not finite (with ``on_nonfinite="skip"`` it is left out, and
            gets the mean of the others).
        TypeError: inside ``jit``, ``shard_map`` or ``pmap``.
    """
    session.require_usable()
    if session.num_nodes == 1:
        return params
    if session.sends and _traced((params, opt_state)):
        raise TypeError(
            "jdaso.finalize takes arrays, got tracers: call it outside of jax.jit, jax.shard_map "
            "and jax.pmap, after the last step."
        )
    is_daso = lambda x: isinstance(x, DasoState)  # noqa: E731
    states = [x for x in jax.tree.leaves(opt_state, is_leaf=is_daso) if is_daso(x)]
    several = not session.simulated and len(session.devices) > 1
    stacked = (
        0 if session.simulated else max([np.size(x.step) for x in states if x.step.ndim], default=0)
    )
    if stacked:
        params = jax.tree.map(_mean_of_devices, params)
        states = jax.tree.map(lambda x: x[0], states)
    elif several and any(int(np.max(np.asarray(state.drift))) > 0 for state in states):
        params = _mean_of_shards(params, session)
    steps = [int(np.max(np.asarray(state.step))) for state in states]
    session.agree("finalize", [("the step of the optimizer state", str(steps))])
    skips = False
    for state in states:
        in_flight = int(np.max(np.asarray(state.ticket))) != 0
        mine = [x for (number, _), x in session.completions.items() if number == _number(state)]
        skips |= any(completion.skips for completion in mine)
        if in_flight or jax.tree.leaves(state.error):
            with session.told():
                params = jax.block_until_ready(_complete(params, state, in_flight, session))
    mean_of = partial(_mean_of_finite, session=session, skips=skips)
    if session.simulated:
        mean_of = jax.vmap(mean_of, axis_name=session.node_axis)
    else:
        _agree_on_shapes(session, "average a tree", params)
    with session.told():
        result = jax.block_until_ready(jax.jit(mean_of)(params))
    if stacked:
        result = jax.tree.map(lambda x: jnp.broadcast_to(x, (stacked, *jnp.shape(x))), result)
    return result


def _number(state: DasoState) -> int:
    return int(np.max(np.asarray(state.optimizer)))


def _mean_of_devices(x: Any) -> Any:
    """Mean over the first axis, of a node's devices, which may have parted (`local_every`)."""
    if not is_float(jnp.result_type(x)):
        return x[0]
    wide = jnp.promote_types(jnp.result_type(x), jnp.float32)
    apart = jnp.any(x != x[:1])
    return jnp.where(apart, jnp.mean(x.astype(wide), axis=0).astype(x.dtype), x[0])


def _mean_of_shards(params: PyTree, session: Session) -> PyTree:
    """The same for arrays that are declared replicated, of which each device holds its own."""
    devices = len(session.devices)

    def on_all(x: Any) -> bool:
        return len(x.addressable_shards) == devices and x.sharding.is_fully_replicated

    leaves = [x for x in jax.tree.leaves(params) if is_float(jnp.result_type(x))]
    if not all(isinstance(x, jax.Array) and on_all(x) for x in leaves):
        raise session.control.error(
            f"The {devices} devices of this node have parted (local_every > 1), and finalize was "
            "given the parameters of one. Pass parameters and state of all devices, stacked along "
            "their first axis."
        )

    def mean_of(x: Any) -> Any:
        if not is_float(jnp.result_type(x)):
            return x
        return _mean_of_devices(jnp.stack([np.asarray(s.data) for s in x.addressable_shards]))

    return jax.tree.map(mean_of, params)


def _complete(params: PyTree, state: DasoState, in_flight: bool, session: Session) -> PyTree:
    """Merges what one optimizer has in flight, and what its wire owes, into its own leaves."""
    flat, tree = jax.tree.flatten(params)
    here = describe(params)
    for (number, leaves), completion in session.completions.items():
        mine = [leaf for leaf in leaves if leaf.exchanged]
        places = _places(mine, here, simulated=session.simulated)
        if number != _number(state) or places is None:
            continue
        before = [flat[k] for k in places]
        complete = partial(completion.complete, in_flight=in_flight)
        if session.simulated:
            complete = jax.vmap(complete, axis_name=session.node_axis)
        after = from_leaves(before, jax.jit(complete)(to_leaves(before), state))
        for k, leaf in zip(places, after, strict=True):
            flat[k] = leaf
        return jax.tree.unflatten(tree, flat)
    raise session.control.error(
        "The optimizer state has an exchange in flight, but no optimizer of this session has "
        "parameters like the ones given. Pass the parameters that were given to tx.update."
    )


def _places(mine: list[Leaf], here: tuple[Leaf, ...], *, simulated: bool) -> list[int] | None:
    """Where an optimizer's leaves are among all: by path, else (other containers) by order."""
    skip = 1 if simulated else 0  # an axis of nodes
    of_path = {leaf.path: k for k, leaf in enumerate(here)}
    by_path = [of_path.get(leaf.path, -1) for leaf in mine]
    by_order = [k for k, leaf in enumerate(here) if leaf.exchanged]
    for places in (by_path, by_order):
        found = [(here[k].shape[skip:], here[k].dtype) for k in places if k >= 0]
        if found == [(leaf.shape, leaf.dtype) for leaf in mine]:
            return places
    return None


def _mean(tree: PyTree, session: Session, local_axis: LocalAxis) -> PyTree:
    exchange = Exchange.of(tree, session, local_axis=local_axis, name="mean")
    step = jnp.zeros((), jnp.int32)
    return exact_mean(exchange, tree, header(step=step), step)[0]


def _mean_of_finite(params: PyTree, session: Session, skips: bool) -> PyTree:
    step = jnp.zeros((), jnp.int32)
    exchange = Exchange.of(params, session, name="finalize", owner=-1, raise_nonfinite=not skips)
    return exact_mean_of_finite(exchange, params, header(step=step), step)[0]


def _traced(tree: PyTree) -> bool:
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(tree))


def _agree_on_shapes(session: Session, what: str, tree: PyTree) -> None:
    facts = [(f"leaf {leaf.path}", str(leaf)) for leaf in describe(tree)]
    require_own_devices(session, tree)
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
