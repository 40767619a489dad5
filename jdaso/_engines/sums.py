"""Sums over nodes that a step waits for: leaves go to the host, and their sums come back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .._payload.checksums import fingerprints_on_host
from .._payload.words import BAD_LEAF, FAILED, STATUS, facts_of
from .channel import Channel
from .in_flight import InFlight
from .passes import divide, is_finite, passes_of, scale
from .staging import Leaves, StagingMemory


class Result(NamedTuple):
    """Sums of leaves over nodes.

    Attributes:
        heads: headers of all nodes.
        leaves: the sums, float32.
        lost: the wire's rounding error on this node (nothing for the float32 wire).
    """

    heads: np.ndarray
    leaves: list[np.ndarray]
    lost: list[np.ndarray]


class Sums:
    """The sums of one channel.

    Args:
        channel: sends them.
        node: this node's number.
    """

    def __init__(self, channel: Channel, node: int):
        self._channel, self.node, self.wire = channel, node, channel.wire
        self.passes = passes_of(channel.wire)
        self.leaves = Leaves(channel.layout)

    def total(
        self, ticket: int, arrays: Sequence[np.ndarray], head: np.ndarray, **by: int
    ) -> Result:
        """Waits for the sums of leaves over nodes; see `start`.

        On failure: as `Channel.wait`.
        """
        return self._total(ticket, arrays, head, **by)[0]

    def _total(
        self, ticket: int, arrays: Sequence[np.ndarray], head: np.ndarray, **by: int
    ) -> tuple[Result, np.ndarray]:
        """Like `total`, with the sums as one vector."""
        return self.wait(ticket, self.start(ticket, arrays, head, **by), **by)

    def mean(
        self, ticket: int, arrays: Sequence[np.ndarray], head: np.ndarray, **by: int
    ) -> Result:
        """Waits for means, ``sum_p w_p x_p / sum_p w_p``, of leaves that are ``w_p x_p``."""
        result, whole = self._total(ticket, arrays, head, **by)
        share = np.float32(1) / np.float32(len(result.heads))
        scale(whole, facts_of(result.heads).factor, share)
        return result

    def mean_of_finite(
        self,
        ticket: int,
        arrays: Sequence[np.ndarray],
        head: np.ndarray,
        *,
        count: int,
        **by: int,
    ) -> Result:
        """Like `mean`, of the first `count` leaves, over nodes where these are all finite.

        The other leaves are summed. If no node's numbers are finite, the means are 0.
        """
        bad = next((k for k, x in enumerate(arrays[:count]) if not is_finite(x)), None)
        if bad is not None:
            arrays = [*map(np.zeros_like, arrays[:count]), *arrays[count:]]
            head = np.array(head)
            head[BAD_LEAF] = 1 + bad
        result, whole = self._total(ticket, arrays, head, **by)
        end = self._channel.layout.offsets[count]
        divide(whole[:end], facts_of(result.heads).weight)
        return result

    def land(
        self,
        ticket: int,
        target: Sequence[np.ndarray],
        landed: Iterable[np.ndarray],
        head: np.ndarray,
        **by: int,
    ) -> Result:
        """Waits for targets with 0 where the nodes would not land alike.

        Args:
            ticket: the exchange.
            target: the leaves that all nodes move to; the same on all.
            landed: the leaves that this node would arrive at, float32.
            head: this node's header.
            by: see `start`.
        """
        bits = 24 - self._channel.layout.nodes.bit_length()  # sums of these integers are exact
        prints, finite = [], []
        for leaf in landed:
            prints.append(fingerprints_on_host(leaf, bits).astype(np.float32))
            finite.append(np.isfinite(leaf))
        heads, totals, _ = self.total(ticket, prints, head, **by)
        living = facts_of(heads).living
        odd = [
            # Adding cannot remove a NaN: if one node holds it, the others still go to the target.
            np.where(here, living * mine != total, np.float32(np.nan)).astype(np.float32)
            for mine, total, here in zip(prints, totals, finite, strict=True)
        ]
        if not (heads[:, STATUS] == FAILED).any():
            heads, totals, _ = self.total(ticket, odd, head, **by)
        pairs = zip(totals, target, strict=True)
        return Result(heads, [np.where(x > 0, np.float32(0), t) for x, t in pairs], [])

    def start(
        self,
        ticket: int,
        arrays: Sequence[np.ndarray],
        head: np.ndarray,
        *,
        owner: int = 0,
        device: int = 0,
    ) -> Begun:
        """Starts the sums of leaves over nodes; returns what `wait` takes.

        Args:
            ticket: the exchange.
            arrays: the leaves.
            head: this node's header.
            owner: the optimizer.
            device: the local device that calls.
        """
        staging, narrow = self._channel.staging, self.wire.narrow
        place = staging.numbers()
        encoded = staging.sums() if narrow or self._channel.repeats else place
        numbers = Begun(self, arrays, place, place if narrow else encoded)
        about = {"owner": owner, "device": device, "blocking": True, "place": encoded}
        self._channel.start(ticket, head, lambda flight: numbers, **about)
        return numbers

    def wait(
        self, ticket: int, begun: Begun, *, owner: int = 0, device: int = 0
    ) -> tuple[Result, np.ndarray]:
        """Waits for sums that `start` has started; returns them as one vector, too."""
        heads = self._channel.wait(ticket, device, owner=owner)
        found, lost = begun.sums.whole, begun.lost
        if (heads[:, STATUS] == FAILED).any():
            found = np.zeros_like(found)  # a thread that is still in MPI may send from that memory
            lost = [found]
        self._channel.note_merged(ticket)
        whole = np.concatenate([x.reshape(-1) for x in lost]) if self.wire.narrow else None
        rest = [] if whole is None else self.leaves.read(whole)
        return Result(heads, self.leaves.read(found), rest), found


@dataclasses.dataclass
class Begun:
    """A sum that was started, and its numbers as its channel sees them; see `in_flight.Numbers`.

    Attributes:
        of: the sums of the channel.
        arrays: the leaves.
        place: takes the leaves, float32.
        sums: takes their sums, float32; the same as `place` unless rows may be sent again.
        lost: the wire's rounding error, by chunk.
    """

    of: Sums
    arrays: Sequence[np.ndarray]
    place: StagingMemory
    sums: StagingMemory
    lost: list[np.ndarray] = dataclasses.field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes that leave the step's memory."""
        return sum(x.nbytes for x in self.arrays)

    def write(self) -> Iterator[int]:
        """See `Numbers.write`."""
        self.of.leaves.clear_gaps(self.place.whole)
        return self.of.leaves.write(self.arrays, self.place)

    def encode(self, k: int, room: Callable[[], np.ndarray]) -> tuple[np.ndarray, int]:
        """See `Numbers.encode`."""
        numbers, wire = self.place.rows, self.of.wire
        if not wire.narrow and k < len(numbers) - 1:
            return numbers[k], 0
        rows = room()
        if not wire.narrow:
            np.copyto(rows[:, : numbers[k].shape[1]], numbers[k])
            return rows, 0
        lost, _ = self.of.passes.encode(numbers[k], rows)
        assert lost is not None
        self.lost.append(lost)
        return rows, 0

    def finish(self, flight: InFlight) -> None:
        """See `Numbers.finish`."""
        if not self.of.wire.narrow:
            return
        assert flight.place is not None
        for k, rows in enumerate(flight.place.rows):
            self.of.passes.decode(rows, self.sums.rows[k])
            lost = self.lost[k] = np.require(self.lost[k], requirements="W")  # JAX's are read-only
            lost[self.of.node] += flight.residuals[k]
