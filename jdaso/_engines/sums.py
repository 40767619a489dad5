"""Sums over nodes that a step waits for: leaves go to the host, and their sums come back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .._payload.wire import WIRES
from .._payload.words import FAILED, STATUS
from .channel import Channel
from .job import Job
from .programs import decoded, encoded
from .staging import Leaves, Place


class Sums:
    """The sums of one channel.

    Args:
        channel: sends them.
        node: this node's number.
    """

    def __init__(self, channel: Channel, node: int):
        self._channel, self.node, self.wire = channel, node, channel.wire
        self._last: _Numbers
        self.numbers = Place(channel.layout, WIRES["float32"])
        self.leaves = Leaves(channel.layout)

    def start(
        self, ticket: int, arrays: Sequence[np.ndarray], head: np.ndarray, owner: int, device: int
    ) -> None:
        """Starts a sum over nodes.

        Args:
            ticket: the exchange.
            arrays: the leaves.
            head: this node's header.
            owner: the optimizer.
            device: the local device that calls.
        """
        numbers = self._last = _Numbers(self, arrays)
        about = {"owner": owner, "device": device, "blocking": True}
        self._channel.start(ticket, head, lambda job: numbers, **about)

    def wait(
        self, ticket: int, owner: int, device: int
    ) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
        """Waits for a sum.

        Returns:
            Headers of all nodes; the sum of each leaf, float32; what the wire has lost of it on
            this node (nothing for the float32 wire).

        On failure: as `Channel.wait`.
        """
        heads = self._channel.wait(ticket, device, owner=owner)
        narrow = self.wire.narrow
        found = self.numbers.whole if narrow else self._channel.staging.result.whole
        lost = [found[:0], *(x.reshape(-1) for x in self._last.lost)]
        if (heads[:, STATUS] == FAILED).any():
            found = np.zeros(self.numbers.whole.shape, np.float32)
            lost = [found]
        self._channel.note_merged(ticket)
        return (
            heads,
            self.leaves.read(found),
            self.leaves.read(np.concatenate(lost)) if narrow else [],
        )


@dataclasses.dataclass
class _Numbers:
    """The numbers of a sum, as its channel sees them; see `job.Numbers`."""

    sums: Sums
    arrays: Sequence[np.ndarray]
    lost: list[np.ndarray] = dataclasses.field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes that leave the step's memory."""
        return sum(x.nbytes for x in self.arrays)

    def write(self) -> Iterator[int]:
        """As `Numbers.write`."""
        return self.sums.leaves.write(self.arrays, self.sums.numbers)

    def encode(self, k: int, rows: np.ndarray) -> tuple[np.ndarray, int]:
        """As `Numbers.encode`."""
        numbers, wire = self.sums.numbers.rows, self.sums.wire
        sent: Any = numbers[k]
        if wire.narrow:
            sent, lost = encoded(numbers[k], wire)
            self.lost.append(lost)
        elif k < len(numbers) - 1:
            return sent, 0
        np.copyto(rows[:, : sent.shape[1]], sent)
        return rows, 0

    def finish(self, job: Job) -> None:
        """As `Numbers.finish`."""
        wire = self.sums.wire
        if not wire.narrow:
            return
        for k, rows in enumerate(job.place.rows):
            np.copyto(self.sums.numbers.rows[k], decoded(rows, wire))
            lost = self.lost[k] = np.array(self.lost[k])
            lost[self.sums.node] += job.residuals[k]
