"""The exact end of a run: the mean of all nodes' parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._exchange.collectives import _agree_on_shapes, _traced
from .._exchange.exact import About, exact_mean_of_finite
from .._exchange.make import exchange_of
from .._exchange.placing import placed
from .._jax.types import PyTree
from .._payload.explicit import on_its_mesh
from .._payload.header import header
from .._payload.layout import describe, is_float
from .._payload.placement import Placement, kept, spec
from .._payload.trees import from_leaves, to_leaves
from .._session import Session
from .master_weights import in_dtypes_of, masters
from .state import DasoState, weight_since_starts
from .unstacking import number_of, places_of, unstacked


@on_its_mesh
def finalize(params: PyTree, opt_state: PyTree, session: Session) -> PyTree:
    """Ends a run at any step: merges the exchange in flight, then takes the exact mean.

    If updates were given weights (``tx.update(..., weight=...)``), a node counts with the mean of
    its weights since its last starts.

    Args:
        params: this node's parameters. If they hold a copy or a shard per device (``pmap`` or
            ``shard_map``), pass them with that first axis of devices. Those in a `master_weights`
            state count instead, if there are any.
        opt_state: the matching optimizer state, with a `daso` anywhere inside, or of any other
            optimizer. Discard the state afterwards: the exchange is still in flight there, and the
            inner state stays the node's own.
        session: the nodes.

    Returns:
        Parameters, bitwise the same on all nodes.

    Raises:
        NodeError: on all nodes, if they stopped at different steps, a node times out, or a node
            holds numbers that are not finite (with ``on_nonfinite="skip"`` that node is left
            out, and gets the mean of the others).
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
    given, params = params, masters(params, opt_state)
    is_daso = lambda x: isinstance(x, DasoState)  # noqa: E731
    states = [x for x in jax.tree.leaves(opt_state, is_leaf=is_daso) if is_daso(x)]
    several = not session.simulated and len(session.devices) > 1
    stacked = (
        0 if session.simulated else max([np.size(x.step) for x in states if x.step.ndim], default=0)
    )
    stack: Callable[[PyTree], PyTree] | None = None
    if stacked:
        params, states, stack = unstacked(params, states, session)
    in_shards = bool(stacked) and session.sends and placed(session, params) is not None
    apart = several and (not stacked or session.joined or in_shards)
    if apart and any(int(np.max(np.asarray(state.drift))) > 0 for state in states):
        params = _mean_of_shards(params, session)
    steps = [int(np.max(np.asarray(state.step))) for state in states]
    session.agree("finalize", [("the step of the optimizer state", str(steps))])
    skips = False
    for state in states:
        in_flight = _in_flight(state)
        mine = [x for _, x in session.optimizers.completions_of(number_of(state))]
        skips |= any(completion.skips for completion in mine)
        feeds = (
            any(completion.feeds() for completion in mine)
            and np.max(np.asarray(state.started)) >= 0
        )
        if any(in_flight) or feeds:
            with session.told():
                params = jax.block_until_ready(_complete(params, state, in_flight, session))
    weight = _weight(states, session)
    placement = placed(session, params) if session.sends else None
    mean_of = partial(_mean_of_finite, session=session, skips=skips, placement=placement)
    if session.simulated:
        mean_of = jax.vmap(mean_of, (0, None, 0), axis_name=session.node_axis)
    else:
        _agree_on_shapes(session, "average a tree", params)
    mean_of = jax.jit(mean_of, out_shardings=kept(params))
    step = np.int32(max(steps, default=0))
    with session.told():
        result = jax.block_until_ready(mean_of(params, step, weight))
    return in_dtypes_of(result if stack is None else stack(result), given)


def _in_flight(state: DasoState) -> tuple[bool, ...]:
    """Flags the fragments that are in flight; virtual nodes hold equal tickets."""
    tickets = np.asarray(state.ticket)
    return tuple(x != 0 for x in tickets.reshape(-1, tickets.shape[-1]).max(axis=0).tolist())


def _weight(states: Sequence[DasoState], session: Session) -> Any:
    """This node's weight in the mean, or those of all virtual nodes; None if all are equal.

    A node has the mean of its weights since the last starts, as in a run's last cycling update.
    """
    if not states:
        return None
    mine = []
    for state in states:
        since, weight = np.asarray(state.since), np.asarray(state.weight)
        mine.append(np.asarray(weight_since_starts(state._replace(since=since, weight=weight), 1)))
    own = np.asarray(np.mean(mine, axis=0), np.float32)
    of_all = own if session.simulated else session.control.allgather("finalize", own)
    return None if (of_all == of_all[0]).all() else own


def _mean_of_shards(params: PyTree, session: Session) -> PyTree:
    """The parameters, each shard averaged over the devices whose copies of the shard diverged."""
    placement = placed(session, params, whole=True)
    devices = len(session.devices)
    if placement is None or placement.devices != devices:
        raise session.control.error(
            f"The {devices} devices of this node have diverged (local_every > 1), and finalize "
            "was given the parameters of one. Pass parameters and state of all devices, stacked "
            "along their first axis."
        )
    flat, structure = jax.tree.flatten(params)
    pairs = zip(flat, placement.divisions, strict=True)
    return jax.tree.unflatten(structure, [_mean_of_copies(x, placement.of([y])) for x, y in pairs])


def _mean_of_copies(x: Any, placement: Placement) -> Any:
    """The array, each shard averaged over the devices whose copies diverged."""
    (division,) = placement.divisions
    names = tuple(name for name, _ in placement.copies(division))
    if not names or not is_float(jnp.result_type(x)):
        return x

    def mean_of(mine: jax.Array) -> jax.Array:
        wide = mine.astype(jnp.promote_types(mine.dtype, jnp.float32))
        apart = jax.lax.pmax(jnp.any(mine != _of_first(mine, names)), names)
        return jnp.where(apart, jax.lax.pmean(wide, names).astype(mine.dtype), mine)

    return jax.jit(placement.inside(mean_of, [division], spec(division)))(x)


def _of_first(x: jax.Array, names: tuple[str, ...]) -> jax.Array:
    """The array of the first device along some axes."""
    return jax.lax.psum(jnp.where(jax.lax.axis_index(names) == 0, x, jnp.zeros_like(x)), names)


def _complete(
    params: PyTree, state: DasoState, in_flight: tuple[bool, ...], session: Session
) -> PyTree:
    """Merges one optimizer's exchanges in flight and error feedback into its leaves."""
    flat, tree = jax.tree.flatten(params)
    here = describe(params)
    for leaves, completion in session.optimizers.completions_of(number_of(state)):
        mine = [leaf for leaf in leaves if leaf.exchanged]
        places = places_of(mine, here, skip=1 if session.simulated else 0)
        if places is None:
            continue
        before = [flat[k] for k in places]
        complete = partial(completion.complete, in_flight=in_flight)
        if session.simulated:
            complete = jax.vmap(complete, axis_name=session.node_axis)
        own = to_leaves(before)
        after = from_leaves(before, jax.jit(complete, out_shardings=kept(own))(own, state))
        for k, leaf in zip(places, after, strict=True):
            flat[k] = leaf
        return jax.tree.unflatten(tree, flat)
    raise session.control.error(
        "The optimizer state has an exchange in flight, but no optimizer of this session has "
        "parameters like the ones given. Pass the parameters that were given to tx.update."
    )


def _mean_of_finite(
    params: PyTree,
    step: jax.Array,
    weight: Any,
    *,
    session: Session,
    skips: bool,
    placement: Placement | None,
) -> PyTree:
    about = {"raise_nonfinite": not skips, "placement": placement}
    exchange = exchange_of(params, session, name="finalize", owner=-1, **about)
    head = header(step=step, weight=1.0 if weight is None else weight)
    return exact_mean_of_finite(exchange, params, About(head, step, weight=weight))[0]
