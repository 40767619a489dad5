"""Parameters averaged between nodes: exchanges started and merged late, and exact means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from .._engines.channel import Channel
from .._exchange.exact import (
    blocking_header,
    common_of,
    exact_mean,
    exact_mean_of_everything,
    exact_mean_of_finite,
    sum_of_bits,
    warn_past_end,
)
from .._exchange.exchange import Exchange
from .._exchange.host import HostExchange
from .._exchange.land import land_alike
from .._exchange.make import exchange_of
from .._exchange.received import Received
from .._exchange.replicated import Common
from .._exchange.updates import difference, select, weighed
from .._payload.chunks import pack
from .._payload.explicit import alike, placed_like, replicated
from .._payload.header import (
    first_bad_leaf,
    header,
    loss_words,
    mean_weight,
    none_weighs,
    time_words,
)
from .._payload.trees import apply_updates, dress, from_leaves, strip, to_leaves, zeros_like
from .._payload.wire import Wire
from .._payload.words import LEFT_OUT
from .._rules.decide import count_start
from .._rules.delay import fit_delay, steps_taken
from .._rules.loss import count_loss
from .._rules.merge import Merge
from .._rules.phases import Phases
from .._rules.state import init_phases
from .._session import Completion, Session
from .._types import Chunks, Leaves, LocalAxis, PyTree, ShapeDtype
from .copies import Copies, move, places_in_leaves
from .state import DasoState, Late


@dataclasses.dataclass(frozen=True)
class Averaging:
    """The exchanges of one `daso`, by its settings; state that changes is in `DasoState`.

    Attributes:
        session: the nodes.
        number: the session's number for the optimizer.
        phases: when the nodes exchange.
        rule: how a late result is merged.
        wire: the format of exchanges; exact means are float32.
        local_axis: axis of the local devices that the caller runs inside, or None.
        blocking: what is averaged while waiting, ``"gradients"`` or ``"parameters"``.
        on_nonfinite: ``"raise"`` or ``"skip"``.
        on_drift: ``"raise"`` or ``"ignore"``, if replicated values diverged.
        chunk_bytes: maximum float32 bytes sent at once.
        name: distinguishes optimizers of equal shapes that are used in one step.
    """

    session: Session
    number: int
    phases: Phases
    rule: Merge
    wire: Wire
    local_axis: LocalAxis
    blocking: str
    on_nonfinite: str
    on_drift: str
    chunk_bytes: int
    name: str

    @property
    def nodes(self) -> int:
        """P."""
        return self.session.num_nodes

    @property
    def keeps_anchor(self) -> bool:
        """True if a point common to all nodes is kept between exchanges."""
        return self.rule.needs_anchor or self.wire.narrow

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Settings that must be the same on all nodes, by name."""
        settings = {
            "phases": self.phases,
            "wire": self.wire.name,
            "merge": self.rule.name,
            "blocking": self.blocking,
            "on_nonfinite": self.on_nonfinite,
            "on_drift": self.on_drift,
            "chunk_bytes": self.chunk_bytes,
            "name": self.name,
        }
        facts = [(f"the setting {key}", str(value)) for key, value in settings.items()]
        return [("the optimizer", f"daso, number {self.number}"), *facts]

    def exchange_of(self, tree: PyTree, wire: str | Wire = "float32") -> Exchange:
        """Exchanges of trees like `tree`."""
        return exchange_of(
            tree,
            self.session,
            wire=wire,
            local_axis=self.local_axis,
            name=self.name,
            owner=self.number,
            chunk_bytes=self.chunk_bytes,
            raise_nonfinite=self.on_nonfinite == "raise",
        )

    def init(self, params: PyTree, inner: optax.OptState) -> DasoState:
        """The state before the first update."""
        exchange = self.exchange_of(params, self.wire)
        # Each field has its own buffers: a step that donates its state must not donate one twice.
        zeros = lambda: zeros_like(params) if self.nodes > 1 else ()  # noqa: E731
        zero = lambda: jnp.zeros((), jnp.int32)  # noqa: E731
        rule, narrow = self.rule, self.wire.narrow
        outer = rule.init(dress(params, to_leaves(params)) if self.nodes > 1 else ())
        return DasoState(
            optimizer=jnp.asarray(self.number, jnp.int32),
            step=zero(),
            ticket=zero(),
            started=zero(),
            drift=zero(),
            phase=init_phases(self.phases),
            loss=jnp.zeros(3, jnp.float32),
            weight=jnp.ones((), jnp.float32),
            inner=inner,
            anchor=zeros() if self.keeps_anchor else (),
            snapshot=zeros() if rule.needs_snapshot else (),
            error=zeros() if narrow else (),
            outer=outer,
            flight=exchange.empty_flight() if self.nodes > 1 else (),
        )

    def merge(
        self,
        copies: Copies,
        params: PyTree,
        updates: PyTree,
        state: DasoState,
        step: jax.Array,
        weight: Any,
    ) -> tuple[PyTree, DasoState]:
        """Waits for the exchange in flight, merges it at its true age and returns new updates.

        Merges leaf by leaf, so that XLA makes one pass over the leaves; joined to chunks they take
        four. Only whether `weight` is None matters here. `copies` in the inner state move with the
        parameters.
        """
        exchange, common = self.exchange_of(params, self.wire), self.common_of_late(state)
        received = exchange.wait(state.ticket, state.flight, state.phase.exchanges, common)
        own = to_leaves(apply_updates(params, updates))
        leaves, new = self._apply(received, own, params, state, step - state.started)
        if copies:
            shifts = jax.tree.map(jnp.subtract, leaves, own)
            new = new._replace(inner=move(new.inner, copies, shifts))
        merged = difference(from_leaves(params, leaves), params, updates)
        if self.on_nonfinite == "skip" or weight is not None:
            merged, new = select(
                received.finite & ~none_weighs(received.heads),
                (merged, new),
                (updates, self._leave_out(params, received, state)),
            )
        state = new._replace(ticket=jnp.zeros_like(state.ticket))
        phase = count_loss(state.phase, *loss_words(received.heads))
        if (virtual := self.session.virtual) is not None:
            taken = steps_taken(virtual.exchange_steps, state.started)
            times = taken, jnp.float32(1)  # a step of virtual nodes takes a second
        else:
            times = time_words(received.heads)
        phase = fit_delay(self.phases, phase, *times)
        weight = state.weight * mean_weight(received.heads)
        return merged, state._replace(phase=phase, weight=weight)

    def _leave_out(self, params: PyTree, received: Received, state: DasoState) -> DasoState:
        """The state after a result was discarded: its mean goes back into the error feedback."""
        if not self.wire.narrow:
            return state
        exchange = self.exchange_of(params, self.wire)
        pairs = zip(strip(state.error), received.total, strict=True)
        owed = tuple(mine + total / received.living for mine, total in pairs)
        owed = dress(params, exchange.add_residual(owed, received, jnp.float32(1)))
        gone = jax.tree.map(jnp.zeros_like, state.error)
        return state._replace(error=select(received.finite, owed, gone))

    def _apply(
        self,
        received: Received,
        leaves: Leaves,
        params: PyTree,
        state: DasoState,
        age: jax.Array,
    ) -> tuple[Leaves, DasoState]:
        """Applies the merge rule to a result; keeps the rounding error for the next exchange."""
        total, error = received.scaled(received.total), state.error
        if self.wire.narrow:
            total = jax.tree.map(lambda c, d: self.nodes * c + d, strip(state.anchor), total)
            lost = jnp.asarray(1 - self.rule.kept_share(received.living, age), jnp.float32)
            lost = received.owed(lost)
            owed = tuple(lost * e for e in strip(error))
            exchange = self.exchange_of(params, self.wire)
            error = dress(params, exchange.add_residual(owed, received, lost))
        merged = self.rule.merge(
            dress(params, leaves),
            state.snapshot,
            dress(params, total),
            state.anchor,
            state.outer,
            nodes=self.nodes,
            living=received.living,
            age=age,
        )
        anchor = merged.anchor if self.keeps_anchor else ()
        state = state._replace(anchor=anchor, error=error, outer=merged.outer)
        return strip(merged.params), state

    def mean(
        self,
        apart: jax.Array,
        copies: Copies,
        params: PyTree,
        updates: PyTree,
        state: DasoState,
        step: jax.Array,
        value: Any,
        weight: Any,
    ) -> tuple[PyTree, DasoState]:
        """Exact mean of parameters and of the inner state, with all remaining error feedback.

        The error feedback is added to the parameters and to `copies` of them.

        If no node had a batch since the last start, all weigh the same. From the third cool-down
        update on, elements that still differ are made equal.
        """
        exchange = self.exchange_of(params)
        own, owed = exchange.pack(apply_updates(params, updates)), None
        owed_inner: dict[int, jax.Array] = {}
        if weight is not None:
            total, steps = state.loss[1:]
            since = total / jnp.maximum(steps, 1.0) / state.weight
            weight = jnp.where(steps > 0, since, weight)
        if self.wire.narrow:
            error = strip(state.error)  # weighed already
            owed = pack(exchange.layout, error)
            places = places_in_leaves(state.inner, copies)
            owed_inner = {place: error[number] for place, number in places.items()}
            state = state._replace(error=jax.tree.map(jnp.zeros_like, state.error))
        given, bits, common = None, jnp.int32(0), None
        if self.blocking == "parameters":
            # Parameters only: moments of local gradients differ, and the mean makes them equal.
            given = value
            bits, common = self.common_of_blocking(params, (), step)

        def mean_of(weight: Any) -> tuple[Chunks, PyTree, Received]:
            return exact_mean_of_everything(
                self.exchange_of,
                params,
                own,
                owed,
                state.inner,
                owed_inner,
                self.blocking_header(given, step, bits, weight),
                step,
                common,
                weight,
            )

        chunks, inner, received = mean_of(weight)
        if weight is not None:
            mean, none = (chunks, inner), none_weighs(received.heads)
            chunks, inner = jax.lax.cond(none, lambda: mean_of(None)[:2], lambda: mean)
        phase = count_loss(state.phase, *loss_words(received.heads))
        third = step >= self.phases.total_steps - self.phases.cooldown_steps + 2
        chunks = jax.lax.cond(
            third & (apart | received.apart),
            lambda: land_alike(exchange, chunks, params, updates, step),
            lambda: chunks,
        )
        updates = difference(exchange.unpack(params, chunks), params, updates)
        return updates, state._replace(inner=inner, phase=phase)

    def blocking_header(
        self, value: Any, step: jax.Array, bits: jax.Array, weight: Any
    ) -> jax.Array:
        """The header of an exact mean; warns once when the run passes its end."""
        # Updates past the end all block, so updates that do not block need no check.
        warned = warn_past_end(self.session, self.phases.total_steps, step)
        return blocking_header(value, step + warned, bits, weight)

    def mean_of_gradients(
        self, grads: PyTree, head: jax.Array, step: jax.Array, common: Common, weight: Any
    ) -> tuple[PyTree, Received]:
        """Exact mean; with ``on_nonfinite="skip"`` over the nodes whose gradients are finite."""
        mean = exact_mean if self.on_nonfinite == "raise" else exact_mean_of_finite
        return mean(self.exchange_of(grads), grads, head, step, common, weight)

    def is_settled(self, step: jax.Array) -> jax.Array:
        """True if all nodes hold identical bits before this blocking update.

        In warm-up they always do; in the cool-down, once its third update is done.
        """
        end = self.phases.total_steps - self.phases.cooldown_steps
        settled = (self.phases.cycling_steps == 0) | (step < self.phases.warmup_steps)
        return settled if self.on_drift == "ignore" else settled | (step >= end + 3)

    def common_of_blocking(
        self, params: PyTree, inner: PyTree, step: jax.Array
    ) -> tuple[jax.Array, Common]:
        """Checksum of the state that must be replicated before a blocking update, and that state.

        The checksum covers the parameters; until the nodes have settled, the inner state too. A bit
        that flips in an inner state after that changes the parameters one update later.
        """
        settled = self.is_settled(step)
        due = settled & ((step == 0) | (self.on_drift != "ignore"))
        common = common_of(params, due)
        bits = jax.lax.cond(
            settled,
            lambda: jax.lax.cond(due, lambda: self._sum_of_params(params), lambda: jnp.int32(0)),
            lambda: sum_of_bits(self.exchange_of(params), (common.tree, inner)),
        )
        return bits, common

    def _sum_of_params(self, params: PyTree) -> jax.Array:
        leaves = to_leaves(params)
        total = sum_of_bits(self.exchange_of(params), leaves)
        if self.on_nonfinite == "raise":
            return total
        finite = [jnp.all(jnp.isfinite(leaf)) for leaf in leaves]
        return jnp.where(jnp.all(jnp.stack(finite)), total, LEFT_OUT)

    def common_of_late(self, state: DasoState) -> Common:
        """State that must be replicated from the start of an exchange until its merge."""
        due = (state.started == 0) | (self.on_drift != "ignore")
        late = Late(state.anchor, state.outer, state.phase)
        return Common(late, due)

    def _sum_of_late(self, params: PyTree, state: DasoState, step: jax.Array) -> jax.Array:
        """Checksum of the replicated state as an exchange starts; the first includes parameters."""
        exchange, late = self.exchange_of(params), (state.anchor, state.phase)
        ignores = self.on_drift == "ignore"
        return jax.lax.cond(
            step == (0 if ignores else self.phases.warmup_steps),
            lambda: sum_of_bits(exchange, (to_leaves(params), late)),
            lambda: jnp.int32(0) if ignores else sum_of_bits(exchange, late),
        )

    def start(
        self, params: PyTree, updates: PyTree, state: DasoState, step: jax.Array, weight: Any
    ) -> DasoState:
        """Starts an exchange of the parameters as `updates` will make them.

        Its weight is the mean of the weights since the last start.
        """
        exchange = self.exchange_of(params, self.wire)
        leaves = to_leaves(apply_updates(params, updates))
        if self.session.virtual is not None and (faults := self.session.virtual.faults):
            leaves = _inject(faults, leaves, step)
        if self.keeps_anchor:
            first = step == self.phases.warmup_steps
            anchor = jax.lax.cond(
                first,
                lambda: alike(dress(params, to_leaves(params)), state.anchor),
                lambda: state.anchor,
            )
            state = state._replace(anchor=anchor)
        if weight is not None:
            weight = state.loss[1] / state.loss[2] / state.weight
        if self.wire.narrow:
            moved = jax.tree.map(jnp.subtract, leaves, strip(state.anchor))
            send = jax.tree.map(jnp.add, weighed(weight, moved), strip(state.error))
        else:
            send = weighed(weight, leaves)
        head = header(
            loss_sum=state.loss[0],
            loss_weight=state.loss[1],
            weight=1.0 if weight is None else weight,
            # Between real nodes the host finds it, while the step goes on (`Channel`).
            bad_leaf=self._first_bad_leaf(leaves) if self.session.simulated else 0,
            step=step,
            checksum=self._sum_of_late(params, state, step),
        )
        ticket, flight, sent = exchange.start(send, head, step, state.phase.exchanges)
        return state._replace(
            ticket=ticket,
            started=step,
            flight=flight,
            phase=count_start(self.phases, state.phase),
            loss=jnp.zeros_like(state.loss),
            snapshot=dress(params, leaves) if self.rule.needs_snapshot else (),
            error=dress(params, jax.tree.map(jnp.subtract, send, sent)) if self.wire.narrow else (),
        )

    def _first_bad_leaf(self, leaves: Leaves) -> jax.Array:
        exchange = self.exchange_of(leaves)
        return first_bad_leaf(exchange.layout, pack(exchange.layout, leaves))

    def register(self, params: PyTree) -> None:
        """Registers the merge of this optimizer's exchange in flight, for `finalize`."""
        outside = dataclasses.replace(self, local_axis=None)
        exchange = outside.exchange_of(params, self.wire)
        shapes = jax.tree.map(lambda x: ShapeDtype(jnp.shape(x), jnp.result_type(x)), params)

        def complete(leaves: Leaves, state: DasoState, in_flight: bool) -> Leaves:
            if in_flight:
                common = self.common_of_late(state)
                turn = state.phase.exchanges
                received = exchange.wait(state.ticket, state.flight, turn, common)
                age = state.step - 1 - state.started
                merged, new = outside._apply(received, leaves, shapes, state, age)
                leaves, state = select(
                    received.finite & ~none_weighs(received.heads),
                    (merged, new),
                    (leaves, outside._leave_out(shapes, received, state)),
                )
            if self.wire.narrow:
                leaves = jax.tree.map(jnp.add, leaves, strip(state.error))
            return leaves

        def channel() -> Channel:
            assert isinstance(exchange, HostExchange)  # virtual nodes keep it in their state
            return exchange.channel

        done = Completion(complete, self.on_nonfinite == "skip", channel)
        self.session.completions[self.number, exchange.layout.leaves] = done


def _inject(faults: Mapping[tuple[int, int], float], leaves: Leaves, step: jax.Array) -> Leaves:
    """Puts the simulated faults of this step into the first number."""
    node, (first, *others) = jax.lax.axis_index(Session.node_axis), leaves
    flat = replicated(first).reshape(-1)
    for (at_node, at_step), fault in faults.items():
        hit = (node == at_node) & (step == at_step)
        flat = flat.at[0].set(jnp.where(hit, jnp.float32(fault), flat[0]))
    return (placed_like(flat.reshape(first.shape), first), *others)
