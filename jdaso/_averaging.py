"""Parameters averaged between nodes: exchanges started and merged late, and exact means."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from ._blocking import (
    blocking_header,
    exact_mean,
    exact_mean_of_everything,
    exact_mean_of_finite,
    land_alike,
    sum_at_first,
)
from ._exchange import Exchange, Received
from ._header import checksum, first_bad_leaf, header, loss_words, time_words
from ._merge import Merge
from ._packing import (
    dress,
    from_vector,
    pack,
    strip,
    to_halves,
    to_leaves,
    to_vector,
    unpack,
)
from ._phases import Phases
from ._schedule import PhaseState, count_loss, count_start, fit_delay, init_phases
from ._session import Completion, Session
from ._types import Chunks, Leaves, PyTree, ShapeDtype
from ._wire import Wire


class DasoState(NamedTuple):
    """State of `daso`: all of it, but for the numbers on the wire, which the session holds."""

    optimizer: Int[Array, ""]  # the session's number for it; the same on all nodes
    step: Int[Array, ""]  # completed updates; the same on all nodes
    ticket: Int[Array, ""]  # the exchange in flight, 0 for none; the same on all nodes
    started: Int[Array, ""]  # step of the last start; the same on all nodes
    drift: Int[Array, ""]  # steps since the node's devices were last equal; the same on all nodes
    phase: PhaseState  # the same on all nodes
    loss: Float[Array, 2]  # sum and number of losses since the last start; differs
    inner: optax.OptState  # differs between nodes while cycling
    # All leaves that travel, one after another; () where the rule or the wire need none.
    anchor: Float[Array, " numbers"] | tuple[()]  # a point common to all nodes
    snapshot: Float[Array, " numbers"] | tuple[()]  # what this node sent last; differs
    error: Float[Array, " numbers"] | tuple[()]  # what a narrow wire has yet to deliver; differs
    outer: PyTree  # state of the outer optimizer; the same on all nodes
    flight: PyTree  # the exchange in flight between virtual nodes; () on real ones


@dataclasses.dataclass(frozen=True)
class Averaging:
    """What one `daso` does between nodes, by its settings; what changes is in `DasoState`.

    Attributes:
        session: the nodes.
        number: the session's number for the optimizer.
        phases: when the nodes talk.
        rule: how a late result is merged.
        wire: the format of exchanges; exact means are float32.
        local_axis: axis of the local devices that the caller is inside of, or None.
        blocking: what is averaged while waiting, ``"gradients"`` or ``"parameters"``.
        on_nonfinite: ``"raise"`` or ``"skip"``.
        chunk_bytes: float32 bytes that travel at once.
        name: tells optimizers of equal shapes that are used in one step apart.
    """

    session: Session
    number: int
    phases: Phases
    rule: Merge
    wire: Wire
    local_axis: str | None
    blocking: str
    on_nonfinite: str
    chunk_bytes: int
    name: str

    @property
    def nodes(self) -> int:
        """P."""
        return self.session.num_nodes

    @property
    def keeps_anchor(self) -> bool:
        """Whether a point common to all nodes is kept between exchanges."""
        return self.rule.needs_anchor or self.wire.narrow

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What must be the same on all nodes, by name."""
        settings = {
            "phases": self.phases,
            "wire": self.wire.name,
            "merge": self.rule.name,
            "blocking": self.blocking,
            "on_nonfinite": self.on_nonfinite,
            "chunk_bytes": self.chunk_bytes,
            "name": self.name,
        }
        facts = [(f"the setting {key}", str(value)) for key, value in settings.items()]
        return [("the optimizer", f"daso, number {self.number}"), *facts]

    def exchange_of(self, tree: PyTree, wire: str = "float32") -> Exchange:
        """Exchanges of trees like `tree`."""
        return Exchange.of(
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
        exchange = self.exchange_of(params, self.wire.name)
        size = exchange.layout.size if self.nodes > 1 else 0
        # Each field its own buffer: steps that donate their state must not meet one twice.
        zeros = lambda: jnp.zeros(size, jnp.float32)  # noqa: E731
        zero = lambda: jnp.zeros((), jnp.int32)  # noqa: E731
        rule, narrow, outer = self.rule, self.wire.narrow, ()
        if rule.outer is not None:
            outer = rule.outer.init(dress(params, to_leaves(params)) if self.nodes > 1 else ())
        return DasoState(
            optimizer=jnp.asarray(self.number, jnp.int32),
            step=zero(),
            ticket=zero(),
            started=zero(),
            drift=zero(),
            phase=init_phases(self.phases),
            loss=jnp.zeros(2, jnp.float32),
            inner=inner,
            anchor=zeros() if self.keeps_anchor else (),
            snapshot=zeros() if rule.needs_snapshot else (),
            error=zeros() if narrow else (),
            outer=outer,
            flight=exchange.empty_flight() if self.nodes > 1 else (),
        )

    def merge(
        self, chunks: Chunks, params: PyTree, state: DasoState, step: jax.Array
    ) -> tuple[Chunks, DasoState]:
        """Waits for what is in flight and merges it at its true age."""
        received = self.exchange_of(params, self.wire.name).wait(
            state.ticket, state.flight, state.phase.exchanges
        )
        merged, state = self._apply(received, chunks, params, state, step - state.started)
        phase = count_loss(state.phase, *loss_words(received.heads))
        if self.session.simulated:
            times = jnp.float32(self.session.exchange_steps), jnp.float32(1)
        else:
            times = time_words(received.heads)
        phase = fit_delay(self.phases, phase, *times)
        return merged, state._replace(phase=phase)

    def _apply(
        self,
        received: Received,
        chunks: Chunks,
        params: PyTree,
        state: DasoState,
        age: jax.Array,
    ) -> tuple[Chunks, DasoState]:
        """The merge rule on what was received; keeps what the wire took for the next exchange."""
        layout, total, error = self.exchange_of(params).layout, received.total, state.error
        anchor, snapshot = (from_vector(layout, x) for x in (state.anchor, state.snapshot))
        if self.wire.narrow:
            total = jax.tree.map(lambda c, d: self.nodes * c + d, anchor, total)
            lost = 1 - self.rule.kept_share(self.nodes, age)
            owed = from_vector(layout, state.error)
            owed = jax.tree.map(lambda e, r: lost * (e + r), owed, received.residual)
            error = to_vector(layout, owed)
        merged = self.rule(
            chunks,
            snapshot,
            total,
            anchor,
            state.outer,
            nodes=self.nodes,
            age=age,
            outer_update=partial(self._update_outer, params),
        )
        anchor = to_vector(layout, merged.anchor) if self.keeps_anchor else ()
        new = state._replace(anchor=anchor, error=error, outer=merged.outer)
        kept = state._replace(error=jax.tree.map(jnp.zeros_like, error))
        if self.on_nonfinite == "raise":
            return merged.params, new._replace(ticket=jnp.zeros_like(state.ticket))
        chunks, state = select(received.finite, (merged.params, new), (chunks, kept))
        return chunks, state._replace(ticket=jnp.zeros_like(state.ticket))

    def _update_outer(
        self, params: PyTree, slope: Chunks, outer: PyTree, anchor: Chunks
    ) -> tuple[Chunks, PyTree]:
        """The outer optimizer's update, on trees like `params`."""
        assert self.rule.outer is not None
        layout = self.exchange_of(params).layout
        slope, anchor = (dress(params, unpack(layout, chunks)) for chunks in (slope, anchor))
        updates, outer = self.rule.outer.update(slope, outer, anchor)
        return pack(layout, strip(updates)), outer

    def mean(
        self,
        chunks: Chunks,
        apart: jax.Array,
        params: PyTree,
        updates: PyTree,
        state: DasoState,
        step: jax.Array,
        value: Any,
    ) -> tuple[Chunks, DasoState]:
        """Exact mean of parameters and of the inner state; pays what the wire still owes.

        From the third cool-down update on, what has not met by then is made to.
        """
        if self.wire.narrow:
            owed = from_vector(self.exchange_of(params).layout, state.error)
            chunks = jax.tree.map(jnp.add, chunks, owed)
            state = state._replace(error=jax.tree.map(jnp.zeros_like, state.error))
        given, bits = None, jnp.int32(0)
        if self.blocking == "parameters":
            # Of parameters alone: moments of local gradients differ, and the mean sets them.
            given, bits = value, self.sum_of_bits(params, state._replace(inner=()), step)
        head = blocking_header(given, step, bits)
        chunks, inner, received = exact_mean_of_everything(
            self.exchange_of, params, chunks, state.inner, head, step
        )
        phase = count_loss(state.phase, *loss_words(received.heads))
        third = step >= self.phases.total_steps - self.phases.cooldown_steps + 2
        chunks = jax.lax.cond(
            third & (apart | received.apart),
            lambda: land_alike(self.exchange_of(params), chunks, params, updates, step),
            lambda: chunks,
        )
        return chunks, state._replace(inner=inner, phase=phase)

    def mean_of_gradients(
        self, grads: PyTree, head: jax.Array, step: jax.Array
    ) -> tuple[PyTree, Received]:
        """Exact mean; with ``on_nonfinite="skip"`` over the nodes whose gradients are finite."""
        mean = exact_mean if self.on_nonfinite == "raise" else exact_mean_of_finite
        return mean(self.exchange_of(grads), grads, head, step)

    def sum_of_bits(self, params: PyTree, state: DasoState, step: jax.Array) -> jax.Array:
        """Checksum of what is to be the same on all nodes: at first parameters, at last all.

        Where the devices of the node differ, it is one that no other node has.
        """

        def of_all() -> jax.Array:
            total = checksum((*to_leaves((params, state.inner)), *to_halves(state.inner)))
            if self.local_axis is None:
                return total
            least, most = (f(total, self.local_axis) for f in (jax.lax.pmin, jax.lax.pmax))
            return jnp.where(least == most, most, most + 1 + self.exchange_of(params).node)

        cools = (self.phases.cycling_steps > 0) & (
            step >= self.phases.total_steps - self.phases.cooldown_steps
        )
        return jax.lax.cond(cools, of_all, lambda: sum_at_first(params, step))

    def start(
        self, params: PyTree, updates: PyTree, state: DasoState, step: jax.Array
    ) -> DasoState:
        """Starts an exchange of the parameters as `updates` will make them."""
        exchange = self.exchange_of(params, self.wire.name)
        layout = exchange.layout
        chunks = exchange.pack(optax.apply_updates(params, updates))
        if self.session.faults:
            chunks = _inject(self.session, chunks, step)
        if self.keeps_anchor:
            first = step == self.phases.warmup_steps
            anchor = jax.lax.cond(
                first, lambda: to_vector(layout, exchange.pack(params)), lambda: state.anchor
            )
            state = state._replace(anchor=anchor)
        send = chunks
        if self.wire.narrow:
            base, owed = (from_vector(layout, x) for x in (state.anchor, state.error))
            send = jax.tree.map(lambda s, c, e: s - c + e, chunks, base, owed)
        head = header(
            loss_sum=state.loss[0],
            loss_count=state.loss[1],
            # Between real nodes the host looks, while the step goes on (`Channel`).
            bad_leaf=first_bad_leaf(layout, chunks) if self.session.simulated else 0,
            step=step,
            checksum=sum_at_first(params, step),
        )
        ticket, flight, sent = exchange.start(send, head, step, state.phase.exchanges)
        return state._replace(
            ticket=ticket,
            started=step,
            flight=flight,
            phase=count_start(self.phases, state.phase),
            loss=jnp.zeros_like(state.loss),
            snapshot=to_vector(layout, chunks) if self.rule.needs_snapshot else (),
            error=to_vector(layout, jax.tree.map(jnp.subtract, send, sent))
            if self.wire.narrow
            else (),
        )

    def register(self, params: PyTree) -> None:
        """Tells `finalize` how to merge what this optimizer has in flight."""
        outside = dataclasses.replace(self, local_axis=None)
        exchange = outside.exchange_of(params, self.wire.name)
        shapes = jax.tree.map(lambda x: ShapeDtype(jnp.shape(x), jnp.result_type(x)), params)

        def complete(leaves: Leaves, state: DasoState, in_flight: bool) -> Leaves:
            chunks = pack(exchange.layout, leaves)
            if in_flight:
                received = exchange.wait(state.ticket, state.flight, state.phase.exchanges)
                age = state.step - 1 - state.started
                chunks, state = outside._apply(received, chunks, shapes, state, age)
            if self.wire.narrow:
                owed = from_vector(exchange.layout, state.error)
                chunks = jax.tree.map(jnp.add, chunks, owed)
            return unpack(exchange.layout, chunks)

        done = Completion(complete, self.on_nonfinite == "skip")
        self.session.completions[self.number, exchange.layout.leaves] = done


def select(condition, yes: Any, no: Any) -> Any:
    """`jnp.where` over trees."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _inject(session: Session, chunks: Chunks, step: jax.Array) -> Chunks:
    """Puts the simulated faults of this step into the first number."""
    node, (first, *others) = jax.lax.axis_index(session.node_axis), chunks
    for (at_node, at_step), fault in session.faults.items():
        hit = (node == at_node) & (step == at_step)
        first = first.at[0, 0].set(jnp.where(hit, jnp.float32(fault), first[0, 0]))
    return (first, *others)
