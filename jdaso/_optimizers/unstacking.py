"""Parameters as `jax.pmap` keeps them: stacked, with a first axis of the node's devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._exchange.placing import undivided
from .._jax.types import PyTree
from .._payload.layout import Division, Leaf, describe, is_float
from .._payload.placement import Placement, spec
from .._session import Session
from .state import DasoState


def unstacked(
    params: PyTree, states: list[DasoState], session: Session
) -> tuple[PyTree, list[DasoState], Callable[[PyTree], PyTree]]:
    """Parameters and states without the first axis, and a function that stacks parameters again.

    Copies are averaged, shards joined. In a node of several ranks the first axis has the devices of
    this rank, and the results lie on the devices of all ranks.

    Args:
        params: stacked parameters.
        states: of the optimizers, stacked too.
        session: the nodes.
    """
    flat, structure = jax.tree.flatten(params)
    placement = _placement(params, states, session)
    if placement is None:
        devices = np.shape(states[0].step)[0]
        whole = jax.tree.map(_mean_of_devices, params)
        copied = lambda x: jnp.broadcast_to(x, (devices, *jnp.shape(x)))  # noqa: E731
        first = jax.tree.map(lambda x: x[0], states)
        return whole, first, lambda result: jax.tree.map(copied, result)
    sizes = [size for _, size in placement.axes]
    mesh = jax.sharding.Mesh(np.array(session.devices).reshape(sizes), placement.names)
    own = [session.devices[k] for k in placement.here]

    def put(x: Any, division: Division) -> Any:
        """One array from each device's part."""
        sharding = jax.NamedSharding(mesh, spec(division))
        shape = placement.whole(np.shape(x)[1:], division)
        parts = [jax.device_put(part, to) for part, to in zip(x, own, strict=True)]
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)

    def stack(result: PyTree) -> PyTree:
        return jax.tree.map(lambda x: _stacked(x, own), result)

    placed = [put(x, division) for x, division in zip(flat, placement.divisions, strict=True)]
    states = jax.tree.map(lambda x: put(x, ()), states)
    return jax.tree.unflatten(structure, placed), states, stack


def number_of(state: DasoState) -> int:
    """The number of an optimizer in its session."""
    return int(np.max(np.asarray(state.optimizer)))


def places_of(mine: Sequence[Leaf], here: Sequence[Leaf], *, skip: int) -> list[int] | None:
    """Positions of an optimizer's leaves among all: by path, else (other containers) by order.

    Args:
        mine: those of the optimizer.
        here: all, with `skip` more axes in front.
        skip: the number of additional axes.
    """
    of_path = {leaf.path: k for k, leaf in enumerate(here)}
    by_path = [of_path.get(leaf.path, -1) for leaf in mine]
    by_order = [k for k, leaf in enumerate(here) if leaf.exchanged]
    for places in (by_path, by_order):
        found = [(here[k].shape[skip:], here[k].dtype) for k in places if k >= 0]
        if found == [(leaf.shape, leaf.dtype) for leaf in mine]:
            return places
    return None


def _placement(params: PyTree, states: list[DasoState], session: Session) -> Placement | None:
    """The placement of parameters whose first axis has shards; None if it has copies only.

    In a node of several ranks copies have a placement too.
    """
    here, numbers = describe(params), [number_of(state) for state in states]
    count = len(session.devices)
    own = np.shape(states[0].step)[0]
    divisions: list[Division] = [()] * len(here)
    found = undivided(session, params) if session.joined else None
    for (number, leaves), completion in session.optimizers.completions.items():
        placement = completion.placement
        if number not in numbers or placement is None:
            continue
        if placement.devices != count or own != len(placement.here):
            continue
        pairs = zip(placement.shards(leaves), placement.divisions, strict=True)
        mine = [(leaf, division) for leaf, division in pairs if leaf.exchanged]
        places = places_of([leaf for leaf, _ in mine], here, skip=1)
        for k, (_, division) in zip(places or (), mine, strict=False):
            divisions[k], found = division, placement
    if found is None or (not session.joined and not any(divisions)):
        return None
    return found.of(divisions)


def _stacked(x: Any, devices: Sequence[Any]) -> Any:
    """The parts of an array that these devices have, stacked."""
    parts = {shard.device: shard.data for shard in x.addressable_shards}
    return jnp.stack([np.asarray(parts[device]) for device in devices])


def _mean_of_devices(x: Any) -> Any:
    """Mean over the first axis: the node's devices, which may have diverged (`local_every`)."""
    if not is_float(jnp.result_type(x)):
        return x[0]
    wide = jnp.promote_types(jnp.result_type(x), jnp.float32)
    apart = jnp.any(x != x[:1])
    return jnp.where(apart, jnp.mean(x.astype(wide), axis=0).astype(x.dtype), x[0])
