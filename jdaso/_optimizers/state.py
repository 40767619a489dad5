"""The states of `jdaso.daso` and `jdaso.synchronous`, as an optax chain carries them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from .._jax.types import PyTree
from .._rules.state import PhaseState, init_phases
from .exchanges import Exchanges


class Lengths(NamedTuple):
    """Progress of a fragment's K pieces with updates of a fixed length; see `update_lengths`."""

    factor: Float[Array, " K"]  # of updates; 0 before the first merge
    sent: Float[Array, "K N"]  # some numbers of each piece, as last sent
    target: Float[Array, "K N"]  # the same numbers of the last merge's target


class DasoState(NamedTuple):
    """State of `daso`. The parameters are exchanged in F fragments; see `Phases`.

    Between real nodes the host holds the numbers of late exchanges (snapshots, common points, error
    feedback); ``held``, ``started`` and ``ticket`` name the version that this state continues from.
    """

    optimizer: Int[Array, ""]  # its number in the session; the same on all nodes
    step: Int[Array, ""]  # completed updates; the same on all nodes
    ticket: Int[Array, " F"]  # exchanges in flight, 0 for none; the same on all nodes
    started: Int[Array, " F"]  # steps of the last starts, -1 for none; the same on all nodes
    delay: Int[Array, " F"]  # S when each fragment last started; the same on all nodes
    drift: Int[Array, ""]  # steps since the node's devices were last equal; the same on all nodes
    phase: PhaseState  # the same on all nodes
    loss: Float[Array, 2]  # since the last start: sum of weighted losses, sum of weights; differs
    # Since each fragment's last start: sum of this node's weights, number of steps; differs.
    since: Float[Array, "F 2"]
    weight: Float[Array, ""]  # mean over the nodes, as last received; the same on all nodes
    scale: Float[Array, " F"]  # `weight` when each fragment last started; the same on all nodes
    inner: optax.OptState  # differs between nodes while cycling
    lengths: tuple[Lengths, ...]  # of each fragment, () if no update has a fixed length; differ
    # Of each fragment: its numbers between virtual nodes; on real ones the number of the `init`.
    held: tuple[PyTree, ...]


class SynchronousState(NamedTuple):
    """State of `synchronous`."""

    step: Int[Array, ""]  # completed updates; the same on all nodes
    inner: optax.OptState  # the same on all nodes
    # Error feedback of a narrow wire, a float32 tree like the parameters; differs between nodes.
    error: PyTree
    weight: Float[Array, ""]  # mean over the nodes, as last received; the same on all nodes
    losses: Float[Array, 2]  # sum and weight of the last losses received; the same on all nodes


def weight_since_starts(state: DasoState, otherwise: Any) -> jax.Array:
    """A node's mean weight since its last starts, relative to ``state.weight``.

    Args:
        state: the state of one node, or of all virtual nodes, stacked.
        otherwise: the result where no update came after the starts.
    """
    total, steps = jnp.moveaxis(jnp.sum(state.since, axis=-2), -1, 0)
    return jnp.where(steps > 0, total / jnp.maximum(steps, 1.0) / state.weight, otherwise)


def init_state(
    exchanges: Exchanges, inner: optax.OptState, lengths: tuple[Lengths, ...]
) -> DasoState:
    """The state of `daso` before the first update.

    Args:
        exchanges: those of the parameters.
        inner: the inner optimizer's state.
        lengths: of each fragment.
    """
    between, count = exchanges.between, len(exchanges.fragments)
    # Each field has its own buffers: a step that donates its state must not donate one twice.
    zero = lambda: jnp.zeros((), jnp.int32)  # noqa: E731
    model = between.session.optimizers.model()
    # On real nodes without their exchanges, which refuse some meshes that only an update names.
    held: tuple[PyTree, ...] = tuple(jnp.asarray(model, jnp.int32) for _ in range(count))
    if between.nodes > 1 and between.session.simulated:
        held = tuple(late.empty(model) for late in exchanges.late)
    return DasoState(
        optimizer=jnp.asarray(between.number, jnp.int32),
        step=zero(),
        ticket=jnp.zeros(count, jnp.int32),
        started=jnp.full(count, -1, jnp.int32),
        delay=jnp.zeros(count, jnp.int32),
        drift=zero(),
        phase=init_phases(between.phases),
        loss=jnp.zeros(2, jnp.float32),
        since=jnp.zeros((count, 2), jnp.float32),
        weight=jnp.ones((), jnp.float32),
        scale=jnp.ones(count, jnp.float32),
        inner=inner,
        lengths=lengths,
        held=held,
    )
