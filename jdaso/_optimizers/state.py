"""The state of `jdaso.daso`, as an optax chain carries it."""

from __future__ import annotations

from typing import Any, NamedTuple

import optax
from jaxtyping import Array, Float, Int

from .._rules.state import PhaseState
from .._types import Leaves, PyTree


class DasoState(NamedTuple):
    """State of `daso`, except numbers in flight between real nodes, which the session holds.

    The parameters are exchanged in F fragments; see `Phases`.
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
    # Float32 trees like the parameters; leaves not exchanged are empty; () if not needed.
    anchor: PyTree  # a point common to all nodes
    snapshot: PyTree  # what this node sent last; differs
    error: PyTree  # error feedback of a narrow wire; differs
    paid: PyTree  # that part of it which the last snapshot was sent with; differs
    outer: tuple[PyTree, ...]  # of each fragment, state of the outer optimizer; the same on all
    flight: tuple[PyTree, ...]  # exchanges in flight between virtual nodes; () on real ones


class Part(NamedTuple):
    """One fragment's share of all that its exchange changes: pieces of leaves, and scalars."""

    updates: tuple[Any, ...]  # None where the update of a leaf is None
    copies: Leaves  # of the parameters, in the inner state
    ticket: Int[Array, ""]
    started: Int[Array, ""]
    delay: Int[Array, ""]
    since: Float[Array, 2]
    scale: Float[Array, ""]
    anchor: Leaves
    snapshot: Leaves
    error: Leaves
    paid: Leaves
    outer: PyTree
    flight: PyTree
    # Shared by all fragments:
    phase: PhaseState
    loss: Float[Array, 2]
    weight: Float[Array, ""]


class Late(NamedTuple):
    """Replicated state of cycling steps; the fields' names appear in errors."""

    anchor: PyTree
    outer: PyTree
    phase: PhaseState
