"""The pace of a run on this node: the time of its steps, and what late exchanges take of it."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from typing import NamedTuple

_LATEST = 3
"""Times whose median counts: one step that saves a checkpoint does not."""


class Totals(NamedTuple):
    """Running totals in seconds; the difference of two describes the steps between them.

    Attributes:
        step: completed updates.
        now: the clock.
        in_flight: with at least one late exchange in flight.
        copying: in which steps stood still to copy numbers of late exchanges.
        working: of the processor, for these copies: a thread that is not run does not copy.
        waiting: in which steps stood still for other nodes.
    """

    step: int
    now: float
    in_flight: float
    copying: float
    working: float
    waiting: float


class Pace:
    """Running totals of one session; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flying, self._since = 0, 0.0
        self._in_flight = self._copying = self._working = self._waiting = 0.0

    def begin(self) -> None:
        """Notes that a late exchange began."""
        with self._lock:
            if self._flying == 0:
                self._since = time.perf_counter()
            self._flying += 1

    def end(self) -> None:
        """Notes that a late exchange ended."""
        with self._lock:
            self._flying -= 1
            if self._flying == 0:
                self._in_flight += time.perf_counter() - self._since

    def copy(self, seconds: float, working: float) -> None:
        """Notes that a step stood still for a copy, of which its thread worked for a part."""
        with self._lock:
            self._copying += seconds
            self._working += working

    def wait(self, seconds: float) -> None:
        """Notes that a step stood still for other nodes."""
        with self._lock:
            self._waiting += seconds

    def totals(self, step: int) -> Totals:
        """The totals before the update with this number."""
        with self._lock:
            now = time.perf_counter()
            since = now - self._since if self._flying else 0.0
            stood = self._copying, self._working, self._waiting
            return Totals(step, now, self._in_flight + since, *stood)


class Measured(NamedTuple):
    """Times that a node's header carries; 0 for what is not known yet.

    Attributes:
        exchange_seconds: from an exchange's start to its result.
        step_seconds: of a step, without the time in which it stood still for exchanges.
        link_steps: time for which a cycle's exchanges occupied the link, in steps.
        held_steps: time for which a cycle's starts and merges held the steps up, in steps.
    """

    exchange_seconds: float = 0.0
    step_seconds: float = 0.0
    link_steps: float = 0.0
    held_steps: float = 0.0


class Stopwatch:
    """Measures the steps between the starts of one channel's exchanges.

    From one late start to the next each fragment is exchanged once. The first exchange compiles
    what it needs, and is not measured.

    Args:
        pace: the totals of the session.
    """

    def __init__(self, pace: Pace):
        self._pace = pace
        self._last: Totals | None = None
        self._windows: deque[tuple[float, float]] = deque(maxlen=_LATEST)
        self._exchanges: deque[float] = deque(maxlen=_LATEST)
        self._late_starts = 0
        self.measured = Measured()

    def note_exchange(self, seconds: float) -> None:
        """Notes the time that a late exchange took."""
        if self._late_starts > 1:
            self._exchanges.append(seconds)
            middle = statistics.median(self._exchanges)
            self.measured = self.measured._replace(exchange_seconds=middle)

    def start(self, step: int, *, blocking: bool) -> None:
        """Notes that an exchange starts.

        Args:
            step: completed updates.
            blocking: whether the step waits for it.
        """
        now = self._pace.totals(step)
        if self._last is not None and step > self._last.step:
            self._measure(self._last, now, late=not blocking and self._late_starts > 1)
        self._last = now
        self._late_starts += not blocking

    def _measure(self, before: Totals, now: Totals, *, late: bool) -> None:
        steps, seconds, in_flight, copying, working, waiting = (
            b - a for a, b in zip(before, now, strict=True)
        )
        step = max(seconds - copying - waiting, 1e-9) / steps
        self.measured = self.measured._replace(step_seconds=step)
        if late:
            self._windows.append((in_flight / step, 2 * working / step))  # a merge copies as much
            link, held = map(statistics.median, zip(*self._windows, strict=True))
            self.measured = self.measured._replace(link_steps=link, held_steps=held)
