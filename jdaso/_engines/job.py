"""One exchange of a channel, from its start to its merge."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from .._errors import NodeError
from .staging import Place


@runtime_checkable
class Late(Protocol):
    """The numbers of a late exchange, as its channel sees them."""

    @property
    def nbytes(self) -> int:
        """Bytes that leave the step's memory."""
        ...

    def write(self) -> Iterator[int]:
        """Copies the numbers to the host; yields each chunk once all of it is there."""
        ...

    def encode(self, k: int, rows: np.ndarray) -> tuple[np.ndarray, int]:
        """Chunk k, encoded into `rows` or elsewhere, and its part of the checksum.

        The last chunk is encoded into `rows`, which end in the header.
        """
        ...

    def finish(self, job: Job) -> None:
        """Makes the result, once the sums are there."""
        ...


EARLIER_RUN = -1
"""In place of a device, for an exchange that comes from a checkpoint."""


class Job:
    """One exchange in flight.

    A mean that a step waits for is enqueued, and later fetched, chunk by chunk.
    """

    def __init__(self, ticket: int, owner: int, blocking: bool, pieces: list[range], place: Place):
        self.ticket, self.owner, self.blocking = ticket, owner, blocking
        self.place = place
        self.step = ticket - 1
        self.begin_seconds = self.stands_since = time.perf_counter()
        self.missing = Counter(k for chunks in pieces for k in chunks)
        self.devices: list[int | None] = [None for _ in pieces]  # that enqueue them
        self.ready = [threading.Event() for _ in place.rows]
        self.done = threading.Event()
        self.residuals: list[np.ndarray] = []
        self.heads: np.ndarray | None = None
        self.error: NodeError | None = None
        self.crossed = False  # True if nodes met in it with different optimizers
        self.late: Late | None = None  # its numbers, if it is late
        self.bad_leaf = 0  # 1 + the first leaf that is not finite
        self.checksum = 0  # of what must be replicated, without the header's
        self.fetched = 0
        self.waited = self.asked = False  # the latter by an optimizer
        self.seconds = 0.0
        self.taken: dict[int, tuple[int, float]] = {}  # lane and begin of chunks in flight

    @property
    def merged(self) -> bool:
        """Returns whether all pieces were fetched at least once."""
        return self.fetched >= len(self.devices)

    def forget(self) -> None:
        """Notes that nothing waits for the exchange any more, for example because it was saved."""
        self.waited = True

    def is_left_to(self, owner: int) -> bool:
        """Returns whether another optimizer may take the ticket: its own one left it complete.

        For example in a first step that is discarded before a new optimizer of equal shapes exists.
        """
        other = owner > 0 and self.owner > 0 and owner != self.owner
        return other and not self.asked and None not in self.devices

    def is_fetched_by_other(self, owner: int) -> bool:
        """Returns whether another optimizer has its headers, but not yet all of its numbers."""
        return self.owner != owner and self.asked and not self.merged and self.error is None

    def take(self, k: int) -> None:
        """Notes that chunk k is in flight, in the first free lane."""
        lanes = [lane for lane, _ in list(self.taken.values())]  # another thread removes items
        lane = next(n for n in itertools.count() if n not in lanes)
        self.taken[k] = lane, time.perf_counter()

    def hand_over(self, k: int) -> None:
        """Notes that a piece's part of chunk k is there; the lock is held."""
        self.missing[k] -= 1
        if self.missing[k] == 0:
            self.ready[k].set()
