"""What a session did and when: running totals, and the latest events."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple


class Event(NamedTuple):
    """One stretch of time on one node.

    Attributes:
        name: "exchange", from an exchange's start to its result; "start" and "wait", in which the
            step stood still for it; or what the caller of `Timeline.record` called it.
        step: completed updates when it began.
        begin_seconds: of `time.perf_counter`.
        end_seconds: the same clock.
    """

    name: str
    step: int
    begin_seconds: float
    end_seconds: float


class Stats(NamedTuple):
    """Running totals of one node since its session began.

    Attributes:
        exchanges: exchanges between nodes that were completed while steps went on.
        blocking_means: means for which a step waited.
        bytes_sent: bytes that this node handed to the network, for both.
        exchange_seconds: sum over exchanges of the time from the start to the result.
        lost_seconds: the time of it in which the step stood still: copying out, waiting.
        blocking_seconds: time in blocking means.
    """

    exchanges: int = 0
    blocking_means: int = 0
    bytes_sent: int = 0
    exchange_seconds: float = 0.0
    lost_seconds: float = 0.0
    blocking_seconds: float = 0.0

    @property
    def hidden_share(self) -> float:
        """``1 - lost_seconds / exchange_seconds``, within 0..1; 1 before the first exchange."""
        if self.exchange_seconds <= 0.0:
            return 1.0
        return min(max(1.0 - self.lost_seconds / self.exchange_seconds, 0.0), 1.0)


class Timeline:
    """Running totals and the latest events of one session; any thread may record.

    Attributes:
        events: the latest 4096, in the order in which they ended.
    """

    def __init__(self, keep: int = 4096):
        self.events: deque[Event] = deque(maxlen=keep)
        self._stats = Stats()
        self._lock = threading.Lock()

    @property
    def stats(self) -> Stats:
        """The totals so far."""
        with self._lock:
            return self._stats

    def add(self, **amounts: int | float) -> None:
        """Adds to the totals named."""
        with self._lock:
            sums = {name: getattr(self._stats, name) + more for name, more in amounts.items()}
            self._stats = self._stats._replace(**sums)

    def record(self, name: str, step: int, begin_seconds: float) -> float:
        """Ends an event now; gives its length in seconds.

        A training loop that records its steps as "step" has them drawn beside the exchanges
        (`jdaso.plots.plot_timeline`).
        """
        end = time.perf_counter()
        self.events.append(Event(name, step, begin_seconds, end))
        return end - begin_seconds
