"""The means of one `jdaso.synchronous`, which each update waits for."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._exchange.exact import (
    About,
    blocking_header,
    common_of,
    exact_mean_and_first,
    mean_value,
    sum_of_bits,
)
from .._exchange.exchange import Exchange
from .._exchange.make import exchange_of
from .._exchange.order import note_last, token_of
from .._exchange.updates import difference, select, weighed, widened
from .._jax.types import LocalAxis, PyTree
from .._payload.explicit import alike
from .._payload.header import loss_words, mean_weight, none_weighs
from .._payload.placement import Placement
from .._payload.trees import (
    apply_updates,
    dress,
    from_halves,
    from_leaves,
    is_none,
    strip,
    to_halves,
    to_leaves,
)
from .._payload.wire import Wire
from .._rules.loss import sum_of_losses
from .._session import Session
from .learning_rate import select_inner
from .placements import Placements
from .state import SynchronousState


class SynchronousUpdate(NamedTuple):
    """One update of one node, as it is traced.

    Attributes:
        params: the parameters before the update.
        updates: gradients until the inner optimizer has run, then what is added to the parameters.
        state: the state so far; its inner state is that before the update.
        value: the node's loss, then the loss that the inner optimizer is given; or None.
        weight: this node's weight relative to the mean of all; None if none was given.
    """

    params: PyTree
    updates: PyTree
    state: SynchronousState
    value: Any
    weight: jax.Array | None

    def received(self, session: Session, heads: jax.Array, **fields: Any) -> SynchronousState:
        """The state with what the headers of all nodes carry, and with other fields replaced."""
        note_last(session, token_of(heads))
        losses = sum_of_losses(*loss_words(heads))
        return self.state._replace(
            weight=self.state.weight * mean_weight(heads), losses=losses, **fields
        )


@dataclasses.dataclass(frozen=True)
class SynchronousMeans:
    """The means that each update waits for, with the settings of `synchronous`."""

    session: Session
    number: int
    placements: Placements
    wire: Wire
    local_axis: LocalAxis
    on_drift: str
    chunk_bytes: int
    name: str

    def of_gradients(self, u: SynchronousUpdate) -> SynchronousUpdate:
        """Averages gradients, with error feedback if the wire is narrow."""
        placement = self.placements.of(u.params)
        along = None if placement is None else placement.along(u.params, u.updates)
        exchange = self._exchange_of(u.updates, along)
        about = self._about(exchange, u)
        sent, error = weighed(u.weight, to_leaves(u.updates)), u.state.error
        if self.wire.narrow:
            mine = jax.tree.map(_of_gradient, u.updates, error, is_leaf=is_none)
            sent = tuple(map(jnp.add, sent, strip(mine)))
        found = exchange.total(sent, about.head, about.step, about.common)
        means = tuple(total / self.session.num_nodes for total in found.scaled(found.total))
        if self.wire.narrow:
            # A gradient that is dropped drops no error feedback; NaN must not enter it.
            drops = none_weighs(found.heads)
            keeps = [jnp.all(jnp.isfinite(x)) & ~drops for x in means]
            news = zip(keeps, found.owed(found.lost), strip(mine), strict=True)
            lost = dress(u.updates, tuple(jnp.where(*each) for each in news))
            means = tuple(jnp.where(drops, jnp.zeros_like(x), x) for x in means)
            error = alike(jax.tree.map(_replaced, lost, error, is_leaf=is_none), error)
        return u._replace(
            updates=from_leaves(u.updates, means),
            value=mean_value(u.value, found.heads),
            state=u.received(self.session, found.heads, error=error),
        )

    def of_parameters(
        self, u: SynchronousUpdate, inner: PyTree
    ) -> tuple[SynchronousUpdate, PyTree]:
        """Averages parameters and inner state, after the inner optimizer's update.

        Integers, booleans and keys of the inner state become node 0's.

        Args:
            u: the update.
            inner: the new inner state.
        """
        updates, old = widened(u.updates, u.params), u.state.inner
        if u.weight is not None:  # a node out of data only follows the others
            still = jax.tree.map(jnp.zeros_like, updates)
            updates = select(u.weight > 0, updates, still)
            inner = select_inner(u.weight > 0, inner, old)
        both = (apply_updates(u.params, updates), inner)
        halves = () if self.session.control.survives else to_halves(inner)  # node 0 may have failed
        placement = self.placements.of_both(u.params, old, halves)
        exchange = self._exchange_of((both, halves), placement)
        about = self._about(exchange, u)
        (target, inner), whole, found = exact_mean_and_first(exchange, both, halves, about)
        inner = from_halves(inner, whole) if halves else inner
        if u.weight is not None:
            target, inner = select(none_weighs(found.heads), both, (target, inner))
        updates = difference(target, u.params, updates)
        return u._replace(updates=updates, state=u.received(self.session, found.heads)), inner

    def _exchange_of(self, tree: PyTree, placement: Placement | None) -> Exchange:
        return exchange_of(
            tree,
            self.session,
            wire=self.wire,
            local_axis=self.local_axis,
            name=self.name,
            owner=self.number,
            chunk_bytes=self.chunk_bytes,
            placement=placement,
        )

    def _about(self, exchange: Exchange, u: SynchronousUpdate) -> About:
        """The header of a mean, with the checksum of the parameters before the update."""
        step = u.state.step
        due = step == 0 if self.on_drift == "ignore" else step >= 0  # XLA cannot know that one
        common = common_of(u.params, due, self.placements.of(u.params))
        bits = jax.lax.cond(
            due,
            lambda: sum_of_bits(exchange, common.tree, common.divisions),
            lambda: jnp.int32(0),
        )
        return About(blocking_header(u.value, step, bits, u.weight), step, common, u.weight)


def _of_gradient(gradient: Any, error: PyTree) -> PyTree:
    """The error feedback of a gradient on a narrow wire; None if the gradient is None."""
    return None if gradient is None else error


def _replaced(new: Any, old: PyTree) -> PyTree:
    """The new error feedback; the old one if the gradient is None, so the state keeps its tree."""
    return old if new is None else new
