"""Late exchanges of one fragment: started from an update, merged some updates later."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._exchange.exact import sum_of_bits
from .._exchange.late import Correction, Late
from .._exchange.order import after, token_of
from .._exchange.replicated import Common
from .._exchange.updates import added_to, difference, exchanged
from .._jax.types import Leaves, PyTree
from .._payload.explicit import placed_like, replicated
from .._payload.fragments import Fragment, Piece
from .._payload.header import header, living, loss_words, mean_weight, time_words
from .._payload.trees import apply_updates, from_leaves, is_none, to_leaves
from .._rules.decide import count_start
from .._rules.loss import count_loss
from .._rules.measured import Times, fit, steps_taken
from .._rules.state import PhaseState
from .._session import Session
from .between import Between
from .copies import Copies, moved
from .exchanges import Exchanges
from .state import DasoState, Lengths, weight_since_starts
from .update import Update
from .update_lengths import SharedLengths


class Phase(NamedTuple):
    """Replicated state of cycling steps; the field's name appears in errors."""

    phase: PhaseState


@dataclasses.dataclass(frozen=True)
class LateExchange:
    """The late exchanges of one fragment of the parameters.

    Attributes:
        exchanges: those of the parameters.
        lengths: the updates of a fixed length.
        index: f.
    """

    exchanges: Exchanges
    lengths: SharedLengths
    index: int

    @property
    def between(self) -> Between:
        """The optimizer's settings."""
        return self.exchanges.between

    @property
    def fragment(self) -> Fragment:
        """The pieces of leaves that are exchanged."""
        return self.exchanges.fragments[self.index]

    @property
    def late(self) -> Late:
        """The exchanges of these pieces."""
        return self.exchanges.late[self.index]

    def begin(self, u: Update) -> Update:
        """Takes the parameters before the first cycling update as the common point."""
        held, token = self.late.begin(
            u.state.held[self.index], self._pieces(u.params, u.params), u.state.step
        )
        return u.with_state(held=self._held(u.state, held)).after(token)

    def merge(self, u: Update) -> Update:
        """Waits for the exchange in flight and merges it at its true age.

        Merges leaf by leaf, so that XLA makes one pass over the leaves. Copies in the inner state
        move with the parameters.
        """
        state, f = u.state, self.index
        age = state.step - state.started[f]
        found, held = self._wait(state, age)
        before = self._pieces(u.params, u.params)
        updates = self._pieces(u.params, u.updates)
        inner, copies = state.inner, self._own(u.copies)
        selects = self.between.on_nonfinite == "skip" or u.weight is not None
        if self.between.rule.keeps_progress and not (copies or selects):
            moves = added_to(before, updates, found.change)
        else:
            own = to_leaves(apply_updates(before, updates))
            merged = self.late.merge(own, found, age, living(found.heads))
            if selects:
                merged = tuple(jnp.where(found.merges, *x) for x in zip(merged, own, strict=True))
            moves = difference(from_leaves(before, merged), before, updates)
            inner = self._moved(inner, copies, own, merged)
        u = u._replace(updates=self._joined(u.params, u.updates, moves)).with_state(
            inner=inner,
            lengths=self._measured(state, lambda x: self.lengths.merged(x, self.fragment, found)),
            ticket=state.ticket.at[f].set(0),
            held=self._held(state, held),
            phase=self._counted(found.heads, state),
            weight=state.scale[f] * mean_weight(found.heads),
        )
        return u.after(token_of(found.heads))

    def _moved(
        self, inner: PyTree, copies: list[tuple[int, int, Piece]], own: Leaves, merged: Leaves
    ) -> PyTree:
        """The inner state with its copies of the parameters moved as these are."""
        flat, tree = jax.tree.flatten(inner)
        for place, number, piece in copies:
            copy = moved(piece.cut(flat[place]), merged[number] - own[number])
            flat[place] = piece.put(flat[place], copy)
        return jax.tree.unflatten(tree, flat)

    def start(self, u: Update, bits: jax.Array) -> Update:
        """Starts an exchange of the parameters as the update will make them.

        Its weight is the mean of the weights since the fragment's last start.

        Args:
            u: the update.
            bits: added to the checksum; the nodes must agree on it.
        """
        state, f = u.state, self.index
        leaves = apply_updates(self._pieces(u.params, u.params), self._pieces(u.params, u.updates))
        virtual = self.between.session.virtual
        if virtual is not None and virtual.faults:
            leaves = _inject(virtual.faults, leaves, state.step)
        weight = None
        if u.weight is not None:
            weight = state.since[f, 0] / state.since[f, 1] / state.weight
        head = header(
            loss_sum=state.loss[0],
            loss_weight=state.loss[1],
            weight=1.0 if weight is None else weight,
            step=state.step,
            checksum=bits + self._sum_of_phase(state),
        )
        ticket, held = self.late.start(
            state.held[f],
            leaves,
            head,
            step=state.step,
            before=state.started[f] + 1,
            weight=weight,
            turn=state.phase.exchanges,
        )
        if not self.between.session.simulated:
            u = u._replace(updates=self._read(u.params, u.updates, ticket))
        phase = count_start(self.between.phases, state.phase, f, len(self.exchanges.fragments))
        u = u.after(jnp.minimum(ticket, 0))  # no ticket is below 1, which XLA cannot know
        return u.with_state(
            ticket=state.ticket.at[f].set(ticket),
            lengths=self._measured(state, lambda x: self.lengths.started(x, self.fragment, leaves)),
            started=state.started.at[f].set(state.step),
            delay=state.delay.at[f].set(phase.delay),
            held=self._held(state, held),
            phase=phase,
            loss=jnp.zeros_like(state.loss),
            since=state.since.at[f].set(0),
            scale=state.scale.at[f].set(state.weight),
        )

    def feedback(self, state: DasoState) -> tuple[Leaves, jax.Array]:
        """The error feedback that no exchange has included yet, and a token for `order.after`."""
        f = self.index
        return self.late.feedback(state.held[f], state.started[f] + 1, state.phase.exchanges)

    def complete(
        self, leaves: Leaves, state: DasoState, *, in_flight: bool
    ) -> tuple[Leaves, DasoState]:
        """Ends a run outside of its step: merges what is in flight, adds the error feedback.

        Args:
            leaves: all exchanged leaves, float32.
            state: the state after the last update.
            in_flight: whether this fragment has an exchange in flight.

        Returns:
            The leaves, and the state for the next fragment, whose calls come after this one's.
        """
        own = self.fragment.take(leaves)
        if in_flight:
            age = state.step - 1 - state.started[self.index]
            found, held = self._wait(state, age)
            merged = self.late.merge(own, found, age, living(found.heads))
            own = tuple(jnp.where(found.merges, *x) for x in zip(merged, own, strict=True))
            weight = state.scale[self.index] * mean_weight(found.heads)
            state = state._replace(held=self._held(state, held), weight=weight)
            state = _behind(token_of(found.heads), state)
        if self.late.feeds:
            numbers, token = self.feedback(state)
            # The feedback is that of weighted leaves; a node of weight 0 adds nothing to the mean.
            weight = weight_since_starts(state, 1.0)
            weight = jnp.where(weight > 0, weight, 1.0)
            own = tuple(x + y / weight for x, y in zip(own, numbers, strict=True))
            state = _behind(token, state)
        return self.fragment.put(leaves, own), state

    def _wait(self, state: DasoState, age: jax.Array) -> tuple[Correction, PyTree]:
        f = self.index
        due = (state.started[f] == 0) | (self.between.on_drift != "ignore")
        common = Common(Phase(state.phase), due)
        turn = state.phase.exchanges
        return self.late.wait(state.held[f], state.ticket[f], age, turn, common)

    def _counted(self, heads: jax.Array, state: DasoState) -> PhaseState:
        """The phase state with the losses and the times that an exchange carried."""
        phase = count_loss(state.phase, *loss_words(heads))
        if (virtual := self.between.session.virtual) is not None:
            taken = steps_taken(virtual.exchange_steps, state.started[self.index])
            # A step of virtual nodes takes a second; fragments follow each other on the link.
            times = taken, jnp.float32(1), len(self.exchanges.fragments) * taken, jnp.float32(0)
        else:
            times = time_words(heads)
        return fit(self.between.phases, phase, Times(*times), sets_interval=self.index == 0)

    def _sum_of_phase(self, state: DasoState) -> jax.Array:
        if self.between.on_drift == "ignore":
            return jnp.int32(0)
        return sum_of_bits(self.late.exchange, state.phase)

    def _held(self, state: DasoState, new: PyTree) -> tuple[PyTree, ...]:
        """The held numbers of all fragments, with this one's replaced."""
        return (*state.held[: self.index], new, *state.held[self.index + 1 :])

    def _measured(
        self, state: DasoState, function: Callable[[Lengths], Lengths]
    ) -> tuple[Lengths, ...]:
        """The lengths of all fragments, with a function applied to this one's."""
        if not self.lengths.leaves:
            return state.lengths
        new = function(state.lengths[self.index])
        return (*state.lengths[: self.index], new, *state.lengths[self.index + 1 :])

    def _own(self, copies: Copies) -> list[tuple[int, int, Piece]]:
        """For each copy of one of this fragment's leaves: its place, the piece's number, piece."""
        pieces = {piece.leaf: (k, piece) for k, piece in enumerate(self.fragment.pieces)}
        return [(place, *pieces[leaf]) for place, leaf in copies if leaf in pieces]

    def _pieces(self, params: PyTree, tree: PyTree) -> tuple[Any, ...]:
        """The fragment's pieces of a tree like `params`; None where its leaf is None."""
        leaves = [x for _, x in exchanged(params, tree)]
        cut = lambda piece, x: None if x is None else piece.cut(x)  # noqa: E731
        return tuple(cut(piece, leaves[piece.leaf]) for piece in self.fragment.pieces)

    def _read(self, params: PyTree, updates: PyTree, ticket: jax.Array) -> PyTree:
        """Updates whose memory is free once the start with this ticket has read them.

        If the start only read them, XLA would copy them past an exact mean that is not due.
        """
        flat, structure = jax.tree.flatten(updates, is_leaf=is_none)
        places = [place for place, _ in exchanged(params, updates)]
        own = {places[piece.leaf] for piece in self.fragment.pieces}
        own = sorted(place for place in own if flat[place] is not None)
        _, held = jax.lax.optimization_barrier((ticket, [flat[place] for place in own]))
        for place, x in zip(own, held, strict=True):
            flat[place] = x
        return jax.tree.unflatten(structure, flat)

    def _joined(self, params: PyTree, tree: PyTree, pieces: tuple[Any, ...]) -> PyTree:
        """A tree like `params` with the fragment's pieces replaced; None stays None."""
        flat, structure = jax.tree.flatten(tree, is_leaf=is_none)
        places = [place for place, _ in exchanged(params, tree)]
        for piece, new in zip(self.fragment.pieces, pieces, strict=True):
            if new is not None:
                place = places[piece.leaf]
                flat[place] = piece.put(flat[place], new)
        return jax.tree.unflatten(structure, flat)


def late_exchanges(exchanges: Exchanges, lengths: SharedLengths) -> tuple[LateExchange, ...]:
    """The late exchanges of all fragments."""
    count = len(exchanges.fragments)
    return tuple(LateExchange(exchanges, lengths, index) for index in range(count))


def _behind(token: jax.Array, state: DasoState) -> DasoState:
    """The state, from which later calls of a completion run after the one that gave `token`."""
    return state._replace(started=after(token, state.started))


def _inject(faults: Mapping[tuple[int, int], float], leaves: Leaves, step: jax.Array) -> Leaves:
    """Puts the simulated faults of this step into the first number."""
    node, (first, *others) = jax.lax.axis_index(Session.node_axis), leaves
    flat = replicated(first).reshape(-1)
    for (at_node, at_step), fault in faults.items():
        hit = (node == at_node) & (step == at_step)
        flat = flat.at[0].set(jnp.where(hit, jnp.asarray(fault, flat.dtype), flat[0]))
    return (placed_like(flat.reshape(first.shape), first), *others)
