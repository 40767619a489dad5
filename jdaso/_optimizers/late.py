"""Late exchanges of one fragment: started from an update, merged some updates later."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from .._exchange.exact import sum_of_bits
from .._exchange.exchange import Exchange
from .._exchange.received import Received
from .._exchange.replicated import Common
from .._exchange.updates import difference, select, weighed
from .._payload.chunks import pack
from .._payload.explicit import placed_like, replicated
from .._payload.fragments import Fragment, Piece
from .._payload.header import (
    first_bad_leaf,
    header,
    loss_words,
    mean_weight,
    none_weighs,
    time_words,
)
from .._payload.trees import apply_updates, dress, from_leaves, is_none, strip, to_leaves, travels
from .._rules.decide import count_start
from .._rules.delay import fit_delay, steps_taken
from .._rules.loss import count_loss
from .._rules.state import PhaseState
from .._session import Session
from .._types import Leaves, PyTree
from .between import Between, dressed
from .copies import Copies, moved
from .state import DasoState, Late, Part


@dataclasses.dataclass(frozen=True)
class LateExchange:
    """The late exchanges of one fragment of the parameters.

    Attributes:
        between: the optimizer's settings.
        fragments: all fragments, of which this is number `index`.
        index: f.
    """

    between: Between
    fragments: tuple[Fragment, ...]
    index: int

    @property
    def fragment(self) -> Fragment:
        """The pieces of leaves that are exchanged."""
        return self.fragments[self.index]

    @cached_property
    def exchange(self) -> Exchange:
        """Their exchange."""
        return self.between.late_exchange(self.fragments, self.index)

    def take(
        self, params: PyTree, updates: PyTree | None, state: DasoState, copies: Copies
    ) -> Part:
        """This fragment's part of an update (if there is one) and of the state; undoes `put`."""
        f, inner = self.index, jax.tree.leaves(state.inner)
        cut = lambda tree: self.fragment.take(strip(tree)) if _is_kept(tree) else ()  # noqa: E731
        return Part(
            updates=() if updates is None else self._pieces(params, updates),
            copies=tuple(piece.cut(inner[place]) for place, _, piece in self._own(copies)),
            ticket=state.ticket[f],
            started=state.started[f],
            delay=state.delay[f],
            since=state.since[f],
            scale=state.scale[f],
            anchor=cut(state.anchor),
            snapshot=cut(state.snapshot),
            error=cut(state.error),
            paid=cut(state.paid),
            outer=state.outer[f],
            flight=state.flight[f],
            phase=state.phase,
            loss=state.loss,
            weight=state.weight,
        )

    def put(
        self, part: Part, params: PyTree, updates: PyTree, state: DasoState, copies: Copies
    ) -> tuple[PyTree, DasoState]:
        """Returns the update and the state with this fragment's part replaced."""
        f = self.index
        inner, tree = jax.tree.flatten(state.inner)
        for (place, _, piece), new in zip(self._own(copies), part.copies, strict=True):
            inner[place] = piece.put(inner[place], new)

        def join(tree: PyTree, pieces: Leaves) -> PyTree:
            if not _is_kept(tree):
                return ()
            return dress(params, self.fragment.put(strip(tree), pieces))

        def at(array: jax.Array, new: jax.Array) -> jax.Array:
            return array.at[f].set(new)

        state = state._replace(
            inner=jax.tree.unflatten(tree, inner),
            ticket=at(state.ticket, part.ticket),
            started=at(state.started, part.started),
            delay=at(state.delay, part.delay),
            since=at(state.since, part.since),
            scale=at(state.scale, part.scale),
            anchor=join(state.anchor, part.anchor),
            snapshot=join(state.snapshot, part.snapshot),
            error=join(state.error, part.error),
            paid=join(state.paid, part.paid),
            outer=(*state.outer[:f], part.outer, *state.outer[f + 1 :]),
            flight=(*state.flight[:f], part.flight, *state.flight[f + 1 :]),
            phase=part.phase,
            loss=part.loss,
            weight=part.weight,
        )
        return self._joined(params, updates, part.updates), state

    def merge(
        self, params: PyTree, part: Part, step: jax.Array, copies: Copies, *, weighted: bool
    ) -> Part:
        """Waits for the exchange in flight and merges it at its true age.

        Merges leaf by leaf, so that XLA makes one pass over the leaves; joined to chunks they take
        four. Copies in the inner state move with the parameters.

        Args:
            params: all parameters, before the update.
            part: this fragment's part.
            step: completed updates.
            copies: of parameters, in the inner state.
            weighted: whether the nodes have weights.
        """
        common = self._common(params, part)
        received = self.exchange.wait(part.ticket, part.flight, part.phase.exchanges, common)
        before = self._pieces(params, params)
        own = to_leaves(apply_updates(before, part.updates))
        leaves, new = self._apply(received, own, params, part, step - part.started)
        shifts = [after - x for after, x in zip(leaves, own, strict=True)] if part.copies else []
        moves = zip(self._own(copies), part.copies, strict=True)
        new = new._replace(
            updates=difference(from_leaves(before, leaves), before, part.updates),
            copies=tuple(moved(x, shifts[number]) for (_, number, _), x in moves),
        )
        if self.between.on_nonfinite == "skip" or weighted:
            merges = received.finite & ~none_weighs(received.heads)
            new = select(merges, new, self._leave_out(received, part))
        return new._replace(
            ticket=jnp.zeros_like(part.ticket),
            phase=self._counted(received, part),
            weight=part.scale * mean_weight(received.heads),
        )

    def _counted(self, received: Received, part: Part) -> PhaseState:
        """The phase state with the losses and the times that an exchange carried."""
        phase = count_loss(part.phase, *loss_words(received.heads))
        if (virtual := self.between.session.virtual) is not None:
            taken = steps_taken(virtual.exchange_steps, part.started)
            times = taken, jnp.float32(1)  # a step of virtual nodes takes a second
        else:
            times = time_words(received.heads)
        return fit_delay(self.between.phases, phase, *times)

    def _leave_out(self, received: Received, part: Part) -> Part:
        """The part after a result was discarded: its mean goes back into the error feedback."""
        if not self.between.wire.narrow:
            return part
        pairs = zip(part.error, received.total, strict=True)
        owed = tuple(mine + total / received.living for mine, total in pairs)
        owed = self.exchange.add_residual(owed, received, jnp.float32(1))
        gone = jax.tree.map(jnp.zeros_like, part.error)
        return part._replace(error=select(received.finite, owed, gone))

    def _apply(
        self, received: Received, own: Leaves, params: PyTree, part: Part, age: jax.Array
    ) -> tuple[Leaves, Part]:
        """Applies the merge rule to a result; keeps the rounding error for the next exchange."""
        between, error = self.between, part.error
        total = received.scaled(received.total)
        if between.wire.narrow:
            total = tuple(between.nodes * c + d for c, d in zip(part.anchor, total, strict=True))
            kept = jnp.asarray(between.rule.kept_share(received.living, age), jnp.float32)
            lost, kept = received.owed((1 - kept, kept))
            owed = tuple(lost * e for e in error)
            if between.keeps_paid:  # the node's own parameters, which lack it, stay by this share
                owed = tuple(x + kept * r for x, r in zip(owed, part.paid, strict=True))
            error = self.exchange.add_residual(owed, received, lost)
        tree = lambda pieces: dressed(params, self.fragment, pieces)  # noqa: E731
        merged = between.rule.merge(
            tree(own),
            tree(part.snapshot) if between.rule.needs_snapshot else (),
            tree(total),
            tree(part.anchor) if between.keeps_anchor else (),
            part.outer,
            nodes=between.nodes,
            living=received.living,
            age=age,
        )
        anchor = strip(merged.anchor) if between.keeps_anchor else ()
        return strip(merged.params), part._replace(anchor=anchor, error=error, outer=merged.outer)

    def start(
        self, params: PyTree, part: Part, step: jax.Array, bits: jax.Array, *, weighted: bool
    ) -> Part:
        """Starts an exchange of the parameters as the update will make them.

        Its weight is the mean of the weights since the fragment's last start.

        Args:
            params: all parameters, before the update.
            part: this fragment's part.
            step: completed updates.
            bits: added to the checksum; the nodes must agree on it.
            weighted: whether the nodes have weights.
        """
        between, session = self.between, self.between.session
        leaves = to_leaves(apply_updates(self._pieces(params, params), part.updates))
        if session.virtual is not None and (faults := session.virtual.faults):
            leaves = _inject(faults, leaves, step)
        weight = part.since[0] / part.since[1] / part.weight if weighted else None
        if between.wire.narrow:
            change = [x - c for x, c in zip(leaves, part.anchor, strict=True)]
            pairs = zip(weighed(weight, change), part.error, strict=True)
            send = tuple(x + e for x, e in pairs)
        else:
            send = weighed(weight, leaves)
        head = header(
            loss_sum=part.loss[0],
            loss_weight=part.loss[1],
            weight=1.0 if weight is None else weight,
            # Between real nodes the host finds it, while the step goes on (`Channel`).
            bad_leaf=self._first_bad_leaf(leaves) if session.simulated else 0,
            step=step,
            checksum=bits + self._sum_of_bits(part),
        )
        ticket, flight, sent = self.exchange.start(send, head, step, part.phase.exchanges)
        phase = count_start(between.phases, part.phase, self.index, len(self.fragments))
        return part._replace(
            ticket=ticket,
            started=step,
            delay=phase.delay,
            flight=flight,
            phase=phase,
            loss=jnp.zeros_like(part.loss),
            since=jnp.zeros_like(part.since),
            scale=part.weight,
            snapshot=leaves if between.rule.needs_snapshot else (),
            error=tuple(map(jnp.subtract, send, sent)) if between.wire.narrow else (),
            paid=part.error if between.keeps_paid else (),
        )

    def complete(
        self, params: PyTree, leaves: Leaves, state: DasoState, *, in_flight: bool
    ) -> Leaves:
        """Ends a run outside of its step: merges what is in flight, adds the error feedback.

        Args:
            params: shapes and dtypes of all parameters.
            leaves: all exchanged leaves, float32.
            state: the state after the last update.
            in_flight: whether this fragment has an exchange in flight.
        """
        part = self.take(params, None, state, ())
        own = self.fragment.take(leaves)
        if in_flight:
            common = self._common(params, part)
            received = self.exchange.wait(part.ticket, part.flight, part.phase.exchanges, common)
            merged = self._apply(received, own, params, part, state.step - 1 - part.started)
            merges = received.finite & ~none_weighs(received.heads)
            own, part = select(merges, merged, (own, self._leave_out(received, part)))
        if self.between.wire.narrow:
            own = tuple(map(jnp.add, own, part.error))
        return self.fragment.put(leaves, own)

    def _common(self, params: PyTree, part: Part) -> Common:
        """State that must be replicated from the start of an exchange until its merge."""
        due = (part.started == 0) | (self.between.on_drift != "ignore")
        anchor = dressed(params, self.fragment, part.anchor) if part.anchor else ()
        return Common(Late(anchor, part.outer, part.phase), due)

    def _sum_of_bits(self, part: Part) -> jax.Array:
        """Checksum of the replicated state as an exchange starts."""
        if self.between.on_drift == "ignore":
            return jnp.int32(0)
        return sum_of_bits(self.exchange, (part.anchor, part.phase))

    def _first_bad_leaf(self, leaves: Leaves) -> jax.Array:
        exchange = self.between.exchange_of(leaves)
        return first_bad_leaf(exchange.layout, pack(exchange.layout, leaves))

    def _own(self, copies: Copies) -> list[tuple[int, int, Piece]]:
        """For each copy of one of this fragment's leaves: its place, the piece's number, piece."""
        pieces = {piece.leaf: (k, piece) for k, piece in enumerate(self.fragment.pieces)}
        return [(place, *pieces[leaf]) for place, leaf in copies if leaf in pieces]

    def _pieces(self, params: PyTree, tree: PyTree) -> tuple[Any, ...]:
        """The fragment's pieces of a tree like `params`; None where its leaf is None."""
        leaves = [x for _, x in _exchanged(params, tree)]
        cut = lambda piece, x: None if x is None else piece.cut(x)  # noqa: E731
        return tuple(cut(piece, leaves[piece.leaf]) for piece in self.fragment.pieces)

    def _joined(self, params: PyTree, tree: PyTree, pieces: Sequence[Any]) -> PyTree:
        """A tree like `params` with the fragment's pieces replaced; None stays None."""
        flat, structure = jax.tree.flatten(tree, is_leaf=is_none)
        places = [place for place, _ in _exchanged(params, tree)]
        for piece, new in zip(self.fragment.pieces, pieces, strict=True):
            if new is not None:
                place = places[piece.leaf]
                flat[place] = piece.put(flat[place], new)
        return jax.tree.unflatten(structure, flat)


def _exchanged(params: PyTree, tree: PyTree) -> list[tuple[int, Any]]:
    """For each exchanged leaf of `params`: the place and the leaf of a tree like `params`.

    The tree may have None in place of a leaf, or of leaves.
    """
    flat, structure = jax.tree.flatten(tree, is_leaf=is_none)
    parts = structure.flatten_up_to(params)
    return [
        (place, x)
        for place, (x, part) in enumerate(zip(flat, parts, strict=True))
        for leaf in jax.tree.leaves(part)
        if travels(leaf)
    ]


def _is_kept(tree: PyTree) -> bool:
    """Returns whether a field of the state is in use; () if it is not."""
    return not (isinstance(tree, tuple) and len(tree) == 0)


def _inject(faults: Mapping[tuple[int, int], float], leaves: Leaves, step: jax.Array) -> Leaves:
    """Puts the simulated faults of this step into the first number."""
    node, (first, *others) = jax.lax.axis_index(Session.node_axis), leaves
    flat = replicated(first).reshape(-1)
    for (at_node, at_step), fault in faults.items():
        hit = (node == at_node) & (step == at_step)
        flat = flat.at[0].set(jnp.where(hit, jnp.float32(fault), flat[0]))
    return (placed_like(flat.reshape(first.shape), first), *others)
