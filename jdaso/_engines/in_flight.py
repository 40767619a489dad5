"""One exchange of a channel, from its start to its merge."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from .._base.errors import NodeError
from .staging import RowsToSend, StagingMemory


@runtime_checkable
class Numbers(Protocol):
    """The numbers of an exchange, as its channel sees them."""

    @property
    def nbytes(self) -> int:
        """Bytes that leave the step's memory."""
        ...

    def write(self) -> Iterator[int]:
        """Copies the numbers to the host; yields each chunk once all of it is there."""
        ...

    def encode(self, k: int, room: Callable[[], np.ndarray]) -> tuple[np.ndarray, int]:
        """Chunk k, encoded into the rows of `room` or elsewhere, and its part of the checksum.

        The last chunk is encoded into those rows, which end in the header.
        """
        ...

    def finish(self, flight: InFlight) -> None:
        """Makes the result, once the sums are there."""
        ...


EARLIER_RUN = -1
"""Stands in for a device, for an exchange that comes from a checkpoint."""


class InFlight:
    """One exchange in flight.

    Args:
        ticket: the exchange, 1 + the step of its start.
        owner: the optimizer.
        blocking: whether the step waits for the result.
        rows: the rows to send.
        place: memory for the sums.
        name: its name in traces.
    """

    def __init__(
        self,
        ticket: int,
        owner: int,
        blocking: bool,
        rows: RowsToSend,
        place: StagingMemory,
        name: str,
    ):
        self.ticket, self.owner, self.blocking = ticket, owner, blocking
        self.rows: RowsToSend | None = rows
        self.place: StagingMemory | None = place
        self.name = name
        self.step = ticket - 1
        self.begin_seconds = self.stands_since = time.perf_counter()
        self.device = 0  # the device that started it
        self.started: tuple[int, int] = 0, 0  # where and how often `Heartbeats` counts such starts
        self.ready = [threading.Event() for _ in place.rows]
        self.done = threading.Event()
        self.residuals: list[np.ndarray] = []
        self.heads: np.ndarray | None = None
        self.error: NodeError | None = None
        self.goes_on = False  # True if the session can go on after its error
        self.numbers: Numbers | None = None
        self.bad_leaf = 0  # 1 + the first leaf that is not finite
        self.encoded: dict[int, np.ndarray] = {}  # chunks as they are sent
        self.checksums: dict[int, int] = {}  # checksums of replicated leaves, by chunk
        self.merged = False  # True if its result was taken
        self.waited = self.asked = False  # the latter by an optimizer
        self.seconds = 0.0
        self.taken: dict[int, tuple[int, float]] = {}  # lane and start of chunks in flight

    def amend(self, new: dict[int, int]) -> None:
        """Replaces words of the header to send."""
        assert self.rows is not None
        words = self.rows.header()
        for place, word in new.items():
            words[place] = word
        self.rows.set_header(words)

    def let_go(self) -> None:
        """Releases the arrays that only the exchange uses, and `numbers`, which refers to it."""
        self.numbers = self.rows = self.place = None
        self.encoded.clear()
        self.residuals = []

    def forget(self) -> None:
        """Notes that nothing waits for the exchange now, for example because it was saved."""
        self.waited = True

    def is_left_to(self, owner: int) -> bool:
        """Returns whether another optimizer may take the ticket, since its own left it complete.

        An example is a first step, discarded before a new optimizer of equal shapes exists.
        """
        other = owner > 0 and self.owner > 0 and owner != self.owner
        return other and not self.asked and all(event.is_set() for event in self.ready)

    def why_not_again(self, owner: int, device: int) -> str | None:
        """The reason against another start of this exchange; None if a step was only repeated."""
        if owner != self.owner or (not owner and device == self.device):
            return (
                "Two exchanges of equal shapes are in flight at once. Give the second optimizer "
                "its own name, jdaso.daso(..., name='second'). If a function with its own jax.jit "
                "calls jdaso.mean twice in one step, put all values into one tree."
            )
        if self.device not in (device, EARLIER_RUN):
            return (
                f"Devices {self.device} and {device} of this node both start one exchange, but "
                "only one of them should. Name every axis of jax.shard_map or jax.pmap in which "
                "the update is called: local_axis=('data', 'model')."
            )
        return None

    def take(self, k: int) -> None:
        """Notes that chunk k is in flight, in the first free lane."""
        lanes = [lane for lane, _ in list(self.taken.values())]  # another thread removes items
        lane = next(n for n in itertools.count() if n not in lanes)
        self.taken[k] = lane, time.perf_counter()
