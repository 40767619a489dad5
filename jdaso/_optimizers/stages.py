"""The stages of one update of `jdaso.daso`, in their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from .._exchange.exact import mean_value, same_on_virtual_nodes
from .._exchange.order import after, after_last, note_last, token_of
from .._exchange.trace_marks import COMPUTE, PACK, any_of, mark
from .._exchange.updates import difference, select, widened
from .._exchange.within_node import mean_gradients_locally, mean_locally
from .._jax.types import PyTree
from .._payload.header import add_losses, lift_below_zero, loss_words, mean_weight, sum_of_loss
from .._payload.trees import apply_updates
from .._rules.decide import decide
from .._rules.loss import count_loss, mean_of_untold
from .._rules.plateau import end_step
from .between import Between
from .blocking import is_settled, mean_of_gradients
from .conditions import when
from .copies import Finder
from .cycling import exchange_late, take_mean
from .exchanges import Exchanges
from .late import late_exchanges
from .learning_rate import select_inner
from .shared_moments import Sharing
from .state import DasoState
from .update import Update
from .update_lengths import SharedLengths


@dataclasses.dataclass(frozen=True)
class UpdateStages:
    """The stages of an update, one method each.

    Attributes:
        exchanges: those of the parameters.
        update_inner: the inner optimizer's update; see `inner.update_with`.
        finder: finds copies of the parameters in the inner state.
    """

    exchanges: Exchanges
    update_inner: Callable[..., Any]
    finder: Finder

    @property
    def between(self) -> Between:
        """The optimizer's settings."""
        return self.exchanges.between

    @cached_property
    def sharing(self) -> Sharing:
        """The second moments that the nodes share."""
        return Sharing(self.exchanges)

    @cached_property
    def lengths(self) -> SharedLengths:
        """The updates of a fixed length."""
        return SharedLengths(self.exchanges)

    @property
    def drifts(self) -> bool:
        """True if the node's devices may diverge between two averages."""
        return self.between.phases.max_local_every > 1 and self.between.local_axis is not None

    def alone(
        self, updates: PyTree, state: DasoState, params: PyTree, value: Any, extra: dict[str, Any]
    ) -> tuple[PyTree, DasoState]:
        """The whole update of a single node: the inner optimizer's."""
        between = self.between
        updates = mean_gradients_locally(updates, between.local_axis)
        value = mean_locally(value, between.placements.axes_of_losses or None)
        given = {} if value is None else {"value": value, "mean_loss": value}
        updates, inner = self.update_inner(updates, state.inner, params, given, **extra)
        ended = mark(between.session, COMPUTE, state.step, any_of(updates))
        return updates, state._replace(step=after(ended, state.step + 1), inner=inner)

    def begin(
        self,
        updates: PyTree,
        state: DasoState,
        params: PyTree,
        value: Any,
        weight: Any,
        extra: dict[str, Any],
    ) -> Update:
        """The record of an update, with its tasks."""
        session, phases = self.between.session, self.between.phases
        state = state._replace(step=after_last(session, state.step))
        fields = ("step", "ticket", "started", "delay", "drift", "phase")
        common = {name: getattr(state, name) for name in fields}
        state = state._replace(**same_on_virtual_nodes(session, common))
        flying = state.started, state.ticket, state.delay
        act = decide(phases, state.phase, state.step, *flying)
        given = jnp.asarray(1.0 if weight is None else weight, jnp.float32)
        if weight is not None:
            # A weight below 0 must not vanish in a sum: the headers show which node gave it.
            given = lift_below_zero(given)
            weight = given / state.weight  # about 1: a narrow wire's range is limited
        value = mean_locally(value, self.between.placements.axes_of_losses or None)
        return Update(
            params=params,
            updates=updates,
            state=state,
            act=act,
            value=value,
            given_weight=given,
            weight=weight,
            extra=extra,
            mean_value=value,
            apart=jnp.bool_(False),
        )

    def _together(self, u: Update) -> jax.Array:
        """True if the node's devices are averaged in this update."""
        due = u.state.drift + 1 >= u.state.phase.local_every
        return u.act.blocking | jnp.any(u.act.start) | u.act.mean | due

    def average_in_node(self, u: Update) -> Update:
        """Averages gradients over the node's devices."""
        axis = self.between.local_axis
        if not self.drifts:
            return u._replace(updates=mean_gradients_locally(u.updates, axis))
        updates = jax.lax.cond(
            self._together(u), lambda: mean_locally(u.updates, axis), lambda: u.updates
        )
        return u._replace(updates=updates)

    def average_gradients(self, u: Update) -> Update:
        """Blocking updates average gradients over the nodes."""
        if self.between.blocking != "gradients":
            return u

        def mean(u: Update) -> Update:
            updates, received = mean_of_gradients(self.exchanges, u)
            phase = count_loss(u.state.phase, *loss_words(received.heads))
            weight = u.state.weight * mean_weight(received.heads)
            value = mean_value(u.value, received.heads)
            u = u._replace(updates=updates, mean_value=value, apart=received.apart)
            if self.between.session.sends:
                u = u.after(token_of(received.heads))
            return u.with_state(phase=phase, weight=weight)

        return when(u.act.blocking, mean, u)

    def apply_inner(self, u: Update) -> Update:
        """Runs the inner optimizer; a node out of data only follows the others."""
        state = u.state
        mean_loss = mean_of_untold(state.phase.untold)
        u = u.with_state(phase=state.phase._replace(untold=jnp.zeros_like(state.phase.untold)))
        given = {} if u.mean_value is None else {"value": u.mean_value, "mean_loss": mean_loss}
        if self.between.merges:
            copies = self.finder.copies(u.updates, state.inner, u.params, given, u.extra)
            u = u._replace(copies=copies)
        updates, inner = self.sharing.update(
            u, lambda x: self.update_inner(u.updates, x, u.params, given, **u.extra)
        )
        decay = self.lengths.decay(
            u.params, lambda x: self.update_inner(u.updates, state.inner, x, given, **u.extra)[0]
        )
        u = u._replace(updates=widened(updates, u.params))
        updates = self.lengths.scaled(u, decay)
        if u.weight is not None:
            works = u.weight > 0
            if self.between.blocking == "gradients":
                works |= u.act.blocking
            updates = select(works, updates, jax.tree.map(jnp.zeros_like, updates))
            inner = select_inner(works, inner, state.inner)
        return u._replace(updates=updates).with_state(inner=inner)

    def count(self, u: Update) -> Update:
        """Adds this update's loss and weight to the sums since the last starts."""
        total, weights = u.state.loss
        total = add_losses(total, sum_of_loss(u.value, u.given_weight))
        loss = jnp.stack([total, weights + u.given_weight])
        since = u.state.since + jnp.stack([u.given_weight, jnp.float32(1)])[None]
        nothing = lambda x: jnp.where(u.act.blocking, jnp.zeros_like(x), x)  # noqa: E731
        return u.with_state(loss=nothing(loss), since=nothing(since))

    def meet(self, u: Update) -> Update:
        """Averages parameters and inner states of the node's devices, if they have diverged."""
        if not self.drifts:
            return u
        axis, together = self.between.local_axis, self._together(u)

        def mean() -> tuple[PyTree, PyTree]:
            target = mean_locally(apply_updates(u.params, u.updates), axis)
            moved = difference(target, u.params, u.updates)
            return moved, mean_locally(u.state.inner, axis)

        due = together & (u.state.drift > 0)
        updates, inner = jax.lax.cond(due, mean, lambda: (u.updates, u.state.inner))
        drift = jnp.where(together, 0, u.state.drift + 1)
        return u._replace(updates=updates).with_state(inner=inner, drift=drift)

    def exchange(self, u: Update) -> Update:
        """Merges and starts, or takes an exact mean, whichever are due."""
        step = u.state.step
        apart = u.apart & ~is_settled(self.between, step)
        after_inner = u.act.blocking & (self.between.blocking == "parameters")
        act = u.act._replace(mean=u.act.mean | apart | after_inner)
        u = u._replace(act=act, apart=apart)
        late = late_exchanges(self.exchanges, self.lengths)
        u = when(jnp.any(act.merge | act.start), lambda u: exchange_late(late, u), u)
        due = act.mean | act.last_warmup if self.sharing.moments else act.mean
        u = when(due, lambda u: take_mean(late, self.sharing, u), u)
        kind = jnp.where(jnp.any(act.start), PACK, COMPUTE)
        last = u.state.step + jnp.max(u.state.ticket)
        note_last(self.between.session, jnp.minimum(u.state.step, 0))  # 0, which XLA cannot know
        # Not the conditions' step: of virtual nodes it may be one for each of their devices.
        return u.with_state(step=after(mark(self.between.session, kind, step, last), step))

    def end(self, u: Update) -> tuple[PyTree, DasoState]:
        """The new updates and state."""
        between, state, step = self.between, u.state, u.state.step
        return u.updates, state._replace(
            optimizer=jnp.full_like(state.optimizer, between.number),
            step=step + 1,
            phase=end_step(between.phases, state.phase, step),
        )
