"""The state of `jdaso.daso`, as an optax chain carries it."""

from __future__ import annotations

from typing import NamedTuple

import optax
from jaxtyping import Array, Float, Int

from .._jax.types import PyTree
from .._rules.state import PhaseState


class Lengths(NamedTuple):
    """Progress of a fragment's K pieces with updates of a fixed length; see `update_lengths`."""

    factor: Float[Array, " K"]  # of updates; 0 before the first merge
    sent: Float[Array, "K N"]  # some numbers of each piece, as last sent
    target: Float[Array, "K N"]  # the same numbers of the last merge's target


class DasoState(NamedTuple):
    """State of `daso`. The parameters are exchanged in F fragments; see `Phases`.

    Between real nodes the host holds the numbers of late exchanges (snapshots, common points, error
    feedback); ``started`` and ``ticket`` name the version that this state goes on from.
    """

    optimizer: Int[Array, ""]  # its number in the session; the same on all nodes
    step: Int[Array, ""]  # completed updates; the same on all nodes
    ticket: Int[Array, " F"]  # exchanges in flight, 0 for none; the same on all nodes
    started: Int[Array, " F"]  # steps of the last starts, -1 for none; the same on all nodes
    delay: Int[Array, " F"]  # S as each fragment last started; the same on all nodes
    drift: Int[Array, ""]  # steps since the node's devices were last equal; the same on all nodes
    phase: PhaseState  # the same on all nodes
    loss: Float[Array, 2]  # since the last start: sum of weighted losses, sum of weights; differs
    # Since each fragment's last start: sum of this node's weights, number of steps; differs.
    since: Float[Array, "F 2"]
    weight: Float[Array, ""]  # mean over the nodes, as last received; the same on all nodes
    scale: Float[Array, " F"]  # `weight` as each fragment last started; the same on all nodes
    inner: optax.OptState  # differs between nodes while cycling
    lengths: tuple[Lengths, ...]  # of each fragment, () if no update has a fixed length; differ
    held: tuple[PyTree, ...]  # numbers of each fragment between virtual nodes; () on real ones
