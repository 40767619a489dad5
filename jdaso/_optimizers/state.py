"""The state of `jdaso.daso`, as an optax chain carries it."""

from __future__ import annotations

from typing import NamedTuple

import optax
from jaxtyping import Array, Float, Int

from .._rules.state import PhaseState
from .._types import PyTree


class DasoState(NamedTuple):
    """State of `daso`: all of it, but for the numbers on the wire, which the session holds."""

    optimizer: Int[Array, ""]  # the session's number for it; the same on all nodes
    step: Int[Array, ""]  # completed updates; the same on all nodes
    ticket: Int[Array, ""]  # the exchange in flight, 0 for none; the same on all nodes
    started: Int[Array, ""]  # step of the last start; the same on all nodes
    drift: Int[Array, ""]  # steps since the node's devices were last equal; the same on all nodes
    phase: PhaseState  # the same on all nodes
    # Since the last start: sums of weighted losses and of weights, number of steps; differs.
    loss: Float[Array, 3]
    weight: Float[Array, ""]  # the nodes' mean, when last heard of; the same on all nodes
    inner: optax.OptState  # differs between nodes while cycling
    # Like the parameters, in float32; empty where a leaf does not travel, () where none is needed.
    anchor: PyTree  # a point common to all nodes
    snapshot: PyTree  # what this node sent last; differs
    error: PyTree  # what a narrow wire has yet to deliver; differs
    outer: PyTree  # state of the outer optimizer; the same on all nodes
    flight: PyTree  # the exchange in flight between virtual nodes; () on real ones


class Late(NamedTuple):
    """What cycling steps keep the same on all nodes; the fields' names are in errors."""

    anchor: PyTree
    outer: PyTree
    phase: PhaseState
