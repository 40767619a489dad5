"""The pace of a run on this node: the time of its steps, and what late exchanges take of it."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from typing import NamedTuple

from .._rules.measured import Times

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
        self._latest = [deque[float](maxlen=_LATEST) for _ in Times._fields]
        self._late_starts = 0
        self.measured = Times()

    def note_exchange(self, seconds: float) -> None:
        """Notes the time that a late exchange took."""
        if self._late_starts > 1:
            self._note(Times(exchange_seconds=seconds))

    def start(self, step: int, *, blocking: bool) -> None:
        """Notes that an exchange starts; again, if a step that was discarded is repeated.

        Args:
            step: completed updates.
            blocking: whether the step waits for it.
        """
        last, now = self._last, self._pace.totals(step)
        if last is not None and step == last.step:
            return
        if last is not None and step > last.step:
            self._measure(last, now, late=not blocking and self._late_starts > 1)
        self._last = now
        self._late_starts += not blocking

    def _measure(self, before: Totals, now: Totals, *, late: bool) -> None:
        steps, seconds, in_flight, copying, working, waiting = (
            b - a for a, b in zip(before, now, strict=True)
        )
        step = max(seconds - copying - waiting, 1e-9) / steps
        self._note(Times(step_seconds=step))
        if late:
            held = 2 * working  # a merge copies as much as a start
            self._note(Times(link_steps=in_flight / step, held_steps=held / step))

    def _note(self, times: Times) -> None:
        """Keeps the middle one of the latest; nothing of cycles before there are three."""
        for latest, new in zip(self._latest, times, strict=True):
            if new > 0:
                latest.append(new)
        exchange, step, link, held = (statistics.median(x) if x else 0.0 for x in self._latest)
        if len(self._latest[2]) < _LATEST:
            link = held = 0.0
        self.measured = Times(exchange, step, link, held)
