"""The state of `jdaso.daso`, as an optax chain carries it."""

from __future__ import annotations

from typing import NamedTuple

import optax
from jaxtyping import Array, Float, Int

from .._rules.state import PhaseState
from .._types import PyTree


class DasoState(NamedTuple):
    """State of `daso`, except numbers in flight between real nodes, which the session holds."""

    optimizer: Int[Array, ""]  # its number in the session; the same on all nodes
    step: Int[Array, ""]  # completed updates; the same on all nodes
    ticket: Int[Array, ""]  # the exchange in flight, 0 for none; the same on all nodes
    started: Int[Array, ""]  # step of the last start; the same on all nodes
    drift: Int[Array, ""]  # steps since the node's devices were last equal; the same on all nodes
    phase: PhaseState  # the same on all nodes
    # Since the last start: sums of weighted losses and of weights, number of steps; differs.
    loss: Float[Array, 3]
    weight: Float[Array, ""]  # mean over the nodes, as last received; the same on all nodes
    inner: optax.OptState  # differs between nodes while cycling
    # Float32 trees like the parameters; leaves not exchanged are empty; () if not needed.
    anchor: PyTree  # a point common to all nodes
    snapshot: PyTree  # what this node sent last; differs
    error: PyTree  # error feedback of a narrow wire; differs
    outer: PyTree  # state of the outer optimizer; the same on all nodes
    flight: PyTree  # the exchange in flight between virtual nodes; () on real ones


class Late(NamedTuple):
    """Replicated state of cycling steps; the fields' names appear in errors."""

    anchor: PyTree
    outer: PyTree
    phase: PhaseState
