"""The pace of a run on this node: the time of its steps, and the share of late exchanges in it."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from typing import NamedTuple

from .._jax.ffi.on_device import waited_seconds
from .._rules.measured import Times

_WINDOW = 8
"""The fewest steps of a window: a single step may wait for its turn on the cores."""

_WINDOWS, _EXCHANGES = 3, 9
"""Windows and exchanges whose median counts, so that one that saves a checkpoint does not."""


class Totals(NamedTuple):
    """Running totals in seconds; the difference of two describes the steps between them.

    Attributes:
        step: completed updates.
        now: the clock.
        in_flight: with at least one late exchange in flight.
        copying: in which steps stood still to copy numbers of late exchanges.
        working: of the processor and of GPUs, for these copies: a thread without a core does not
            copy.
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
        """Notes that a step stood still for a copy, during part of which its thread worked."""
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


def working_seconds() -> float:
    """Seconds in which this thread had a core, or waited for copies from a GPU, in all."""
    return time.thread_time() + waited_seconds()


class Stopwatch:
    """Measures the steps between the starts of one channel's exchanges.

    From one late start to the next, a cycle, each fragment is exchanged once. A window is some
    cycles. The first cycle compiles what it needs, and is not measured.

    Args:
        pace: the totals of the session.
    """

    def __init__(self, pace: Pace):
        self._pace = pace
        self._begin: Totals | None = None  # of the window
        self._last_step, self._late_starts, self._cycles = -1, 0, 0
        self._exchanges = deque[float](maxlen=_EXCHANGES)
        self._windows = deque[tuple[float, float, float]](maxlen=_WINDOWS)
        self.measured = Times()

    def note_exchange(self, seconds: float) -> None:
        """Notes the time that a late exchange took."""
        if self._late_starts > 1:
            self._exchanges.append(seconds)
            self.measured = self._middle()

    def start(self, step: int, *, blocking: bool) -> None:
        """Notes that an exchange starts; called again if a discarded step is repeated.

        Args:
            step: completed updates.
            blocking: whether the step waits for it.
        """
        if step == self._last_step:
            return
        back, self._last_step = step < self._last_step, step
        if blocking:
            self._begin = None
            return
        self._late_starts += 1
        if self._late_starts == 1:
            return
        if self._begin is None or back:
            self._begin, self._cycles = self._pace.totals(step), 0
            return
        self._cycles += 1
        if step - self._begin.step >= _WINDOW:
            now = self._pace.totals(step)
            self._windows.append(self._measure(self._begin, now))
            self.measured = self._middle()
            self._begin, self._cycles = now, 0

    def _measure(self, before: Totals, now: Totals) -> tuple[float, float, float]:
        """Seconds of a step in a window; of a cycle, on the link and with steps held up."""
        steps, seconds, in_flight, copying, working, waiting = (
            b - a for a, b in zip(before, now, strict=True)
        )
        step = max(seconds - copying - waiting, 1e-9) / steps
        held = 2 * working  # a merge copies as much as a start
        return step, in_flight / self._cycles, held / self._cycles

    def _middle(self) -> Times:
        """The medians of the latest exchanges and windows; 0 if there are none."""
        exchange = statistics.median_low(self._exchanges) if self._exchanges else 0.0
        if not self._windows:
            return Times(exchange)
        return Times(exchange, *map(statistics.median_low, zip(*self._windows, strict=True)))
