"""Late exchanges between virtual nodes: the optimizer's state holds the numbers."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax.types import Leaves, PyTree
from .._payload.checksums import checksum
from .._payload.chunks import pack, unpack
from .._payload.header import first_bad_leaf, living, weight_of_all
from .._payload.trees import strip, to_leaves, to_numbers
from .._payload.words import BAD_LEAF, CHECKSUM, HEADER
from .late import Correction, Late
from .received import Received
from .replicated import Common
from .updates import select, weighed
from .virtual import VirtualExchange, reduce_virtual


class HeldInState(NamedTuple):
    """The numbers of a fragment: float32 trees like the parameters, () if not needed."""

    anchor: PyTree  # a point common to all nodes
    snapshot: PyTree  # the numbers that this node sent last; differs
    error: PyTree  # their rounding error that was not sent yet; differs
    paid: PyTree  # the error feedback that they were sent with; differs
    outer: PyTree  # state of the outer optimizer; the same on all nodes
    flight: PyTree  # the exchange in flight: rows, residuals and headers


class Replicated(NamedTuple):
    """Replicated state of a fragment; the fields' names appear in errors."""

    anchor: PyTree
    outer: PyTree
    rest: PyTree


class VirtualLate(Late):
    """Late exchanges of one fragment between virtual nodes; see `Late`."""

    exchange: VirtualExchange

    @property
    def _keeps_paid(self) -> bool:
        return self.feeds and not self.rule.keeps_progress

    def empty(self, model: int) -> HeldInState:
        """See `Late.empty`."""
        del model  # the state itself has the numbers
        layout, wire = self.exchange.layout, self.exchange.wire

        def zeros() -> PyTree:  # new ones for each: a step that donates its state donates each once
            return self.dress(tuple(jnp.zeros(x.reals, jnp.float32) for x in layout.exchanged))

        rows = [jnp.zeros((layout.nodes, wire.encoded_width(w)), wire.dtype) for w in layout.widths]
        lost = [jnp.zeros(w if wire.narrow else 0, jnp.float32) for w in layout.widths]
        return HeldInState(
            anchor=zeros() if self.anchored else (),
            snapshot=zeros() if self.rule.keeps_progress else (),
            error=zeros() if self.feeds else (),
            paid=zeros() if self._keeps_paid else (),
            outer=self.rule.init(zeros()),
            flight=_to_flight(rows, lost, jnp.zeros((layout.nodes, HEADER), jnp.int32)),
        )

    def begin(
        self, held: HeldInState, leaves: Leaves, step: jax.Array
    ) -> tuple[HeldInState, jax.Array]:
        """See `Late.begin`."""
        del step
        return held._replace(anchor=self.dress(to_leaves(leaves))), jnp.int32(0)

    def start(
        self,
        held: HeldInState,
        leaves: Leaves,
        head: jax.Array,
        *,
        step: jax.Array,
        before: jax.Array,
        weight: jax.Array | None,
        turn: jax.Array,
    ) -> tuple[jax.Array, HeldInState]:
        """See `Late.start`; computes the sums at once; the state carries them until due."""
        del before, turn
        layout, wire, leaves = self.exchange.layout, self.exchange.wire, to_leaves(leaves)
        send = leaves
        if wire.narrow:
            send = tuple(map(jnp.subtract, leaves, strip(held.anchor)))
        send = weighed(weight, send)
        if wire.narrow:
            send = tuple(map(jnp.add, send, strip(held.error)))
        bits = checksum(to_numbers(held.anchor)) if self.checks else jnp.int32(0)
        head = head.at[BAD_LEAF].set(first_bad_leaf(send))
        head = head.at[CHECKSUM].add(bits)
        encoded = [wire.encode(chunk) for chunk in pack(layout, send)]
        sent = unpack(layout, tuple(wire.decode(chunk) for chunk in encoded))
        return step + 1, HeldInState(
            anchor=held.anchor,
            snapshot=self.dress(leaves) if self.rule.keeps_progress else (),
            error=self.dress(tuple(map(jnp.subtract, send, sent))) if wire.narrow else (),
            paid=held.error if self._keeps_paid else (),
            outer=held.outer,
            flight=_to_flight(*reduce_virtual(wire, encoded, head)),
        )

    def wait(
        self, held: HeldInState, ticket: jax.Array, age: jax.Array, turn: jax.Array, common: Common
    ) -> tuple[Correction, HeldInState]:
        """See `Late.wait`."""
        del ticket, turn
        exchange, layout = self.exchange, self.exchange.layout
        rest = Replicated(held.anchor, held.outer, common.tree)
        common = dataclasses.replace(common, tree=rest)
        found = Received(*exchange.checked(self._from_flight(held.flight), common))
        factor = jnp.float32(layout.nodes) / weight_of_all(found.heads)
        sums = tuple(factor * x for x in found.total)
        if self.feeds:
            points = zip(strip(held.anchor), sums, strict=True)
            sums = tuple(layout.nodes * c + d for c, d in points)
        mean = self.dress(tuple(x / layout.nodes for x in sums))
        target, outer = self.rule.target(mean, held.anchor, held.outer)
        change = strip(target)
        if self.rule.keeps_progress:
            change = tuple(map(jnp.subtract, change, strip(held.snapshot)))
        result = Correction(change, found.heads)
        new = held._replace(anchor=target if self.anchored else (), outer=outer)
        left = held
        if self.feeds:
            new = new._replace(error=self.dress(self._owed(held, found, age)))
            left = held._replace(error=self.dress(self._come_back(held, found)))
        return result, select(result.merges, new, left) if self.anchored else new

    def _owed(self, held: HeldInState, found: Received, age: jax.Array) -> Leaves:
        """Error feedback after a merge."""
        alive = living(found.heads)
        lost = alive / weight_of_all(found.heads)
        kept = jnp.asarray(self.rule.kept_share(alive, age.astype(jnp.float32)), jnp.float32)
        sent, kept = lost * (1 - kept), lost * kept
        owed = tuple(sent * e for e in strip(held.error))
        if self._keeps_paid:
            paid = strip(held.paid)
            owed = tuple(x + kept * r for x, r in zip(owed, paid, strict=True))
        return self._with_residual(owed, found, sent)

    def _come_back(self, held: HeldInState, found: Received) -> Leaves:
        """Error feedback after a result was discarded: its mean is added to the rounding errors."""
        alive = living(found.heads)
        pairs = zip(strip(held.error), found.total, strict=True)
        owed = tuple(mine + total / alive for mine, total in pairs)
        owed = self._with_residual(owed, found, jnp.float32(1))
        return select(found.finite, owed, jax.tree.map(jnp.zeros_like, owed))

    def _with_residual(self, leaves: Leaves, found: Received, factor: jax.Array) -> Leaves:
        return tuple(x + factor * y for x, y in zip(leaves, found.lost, strict=True))

    def feedback(
        self, held: HeldInState, before: jax.Array, turn: jax.Array
    ) -> tuple[Leaves, jax.Array]:
        """See `Late.feedback`."""
        del before, turn
        return strip(held.error), jnp.int32(0)

    def without_feedback(self, held: HeldInState) -> HeldInState:
        """See `Late.without_feedback`."""
        return held._replace(error=jax.tree.map(jnp.zeros_like, held.error))

    def _from_flight(self, flight: PyTree) -> PyTree:
        """Splits what `_to_flight` joined."""
        rows, lost, heads = flight
        layout, wire = self.exchange.layout, self.exchange.wire
        widths = [wire.encoded_width(width) for width in layout.widths]
        ends = list(itertools.accumulate(layout.nodes * width for width in widths))
        rows = [x.reshape(layout.nodes, -1) for x in jnp.split(rows, ends[:-1])]
        ends = list(itertools.accumulate(layout.widths))
        lost = jnp.split(lost, ends[:-1]) if wire.narrow else [lost for _ in widths]
        return tuple(rows), tuple(lost), heads


def _to_flight(rows: Any, lost: Any, heads: jax.Array) -> PyTree:
    """One array each for all chunks."""
    return jnp.concatenate([x.reshape(-1) for x in rows]), jnp.concatenate(lost), heads
