"""The activities of a session over time: running totals, and the latest events."""

from __future__ import annotations

import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, SupportsIndex

from ._intervals import Stretches


class Event(NamedTuple):
    """One stretch of time on one node.

    Attributes:
        name: the activity. For exchanges: "copy" and "wait", in which the step stood still;
            "exchange" (or "mean", if a step waits for it), from the start to the result; "chunk",
            a part of it in flight. "checkpoint". If a trace is recorded also "compute", "pack" and
            "merge" of each local device. Or any name given to `Timeline.record`.
        step: completed updates at its start.
        begin_seconds: on the clock `time.perf_counter`.
        end_seconds: on the same clock.
        lane: its row in a plot, in which no two events cross: "steps", "device 0", "exchange",
            "worker 0", "checkpoint".
        chunk: the part of the exchange; None if the event does not concern a single part.
        size_bytes: the bytes that were copied, sent or written; None if there are none.
        of: the exchange that the event belongs to, ``"channel.ticket"``, the same on all nodes;
            None if there is none.
    """

    name: str
    step: int
    begin_seconds: float
    end_seconds: float
    lane: str = "steps"
    chunk: int | None = None
    size_bytes: int | None = None
    of: str | None = None

    @property
    def seconds(self) -> float:
        """Duration of the event."""
        return self.end_seconds - self.begin_seconds


class Stats(NamedTuple):
    """Running totals of one node since its session began.

    Attributes:
        exchanges: exchanges between nodes that were completed while steps went on.
        blocking_means: means for which a step waited.
        bytes_sent: bytes that this rank sent over the network, for both; a node of several ranks
            sends the sum over its ranks.
        exchange_seconds: sum over exchanges of the time from the start to the result.
        lost_seconds: the part of that time in which steps stood still, copying out or waiting.
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
        return _share(self.lost_seconds, self.exchange_seconds)


def hidden_share(events: Iterable[Event]) -> float:
    """The share of exchange time that did not delay steps, from a node's events alone.

    ``1 - lost / took``, within 0..1, as `Stats.hidden_share`: `took` sums the exchanges among the
    events from start to result, `lost` the time that steps stood still for them, copying out and
    waiting.

    Args:
        events: of one node: ``session.timeline.events``, or those of `jdaso.traces.read`.

    Returns:
        The share; 1 if there is no exchange among the events.

    Example:
        >>> from jdaso import Event, hidden_share
        >>> exchange = Event("exchange", 0, 0.0, 1.0, "exchange", of="1.1")
        >>> hidden_share([exchange, Event("wait", 0, 0.9, 1.0, "device 0", of="1.1")])
        0.9
    """
    took: dict[str | None, float] = {}
    lost: dict[str | None, float] = {}
    for event in events:
        if event.name == "exchange":
            took[event.of] = took.get(event.of, 0.0) + event.seconds
        elif event.name in ("copy", "wait") and event.of is not None:
            lost[event.of] = lost.get(event.of, 0.0) + event.seconds
    return _share(sum(seconds for of, seconds in lost.items() if of in took), sum(took.values()))


def _share(lost_seconds: float, took_seconds: float) -> float:
    if took_seconds <= 0.0:
        return 1.0
    return min(max(1.0 - lost_seconds / took_seconds, 0.0), 1.0)


class Timeline:
    """Running totals and the latest events of one session; any thread may record.

    Attributes:
        sink: called with each event too; None if no trace is recorded.
    """

    def __init__(self, keep: int = 4096):
        self._events: deque[Event] = deque(maxlen=keep)
        self.sink: Callable[[Event], None] | None = None
        self._stretches = Stretches()
        self._stats = Stats()
        self._lock = threading.Lock()

    @property
    def events(self) -> list[Event]:
        """The latest 4096 events, in the order of their ends: a copy, since others may follow."""
        with self._lock:
            return list(self._events)

    def copy_to(self, sink: Callable[[Event], None] | None) -> None:
        """Passes each event from here on to `sink`; None stops that."""
        self.sink = sink

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

    def record(
        self,
        name: str,
        step: SupportsIndex,
        begin_seconds: float,
        *,
        lane: str = "steps",
        chunk: int | None = None,
        size_bytes: int | None = None,
        of: str | None = None,
    ) -> float:
        """Ends an event now; returns its length in seconds. The fields are those of `Event`.

        If a training loop records its steps as "step", they are drawn beside the exchanges
        (`jdaso.plots.plot_timeline`).
        """
        end, number = time.perf_counter(), operator.index(step)  # also NumPy and JAX integers
        event = Event(name, number, begin_seconds, end, lane, chunk, size_bytes, of)
        self._keep(event)
        return event.seconds

    def stand(self, name: str, step: int, begin_seconds: float, *, device: int | None) -> None:
        """Notes that all devices of the node stood still until now.

        Args:
            name: the reason, "wait" or "mean".
            step: completed updates.
            begin_seconds: the start of the standstill.
            device: the device whose lane already shows it; None for none.
        """
        if self.sink is not None:
            self._stretches.stand(name, step, begin_seconds, time.perf_counter(), device)

    def mark(self, name: str, step: int, device: int) -> None:
        """Notes a local device's activity since its last mark, "compute", "pack" or "merge".

        Its standstills are recorded separately.
        """
        for what, at, begin, end in self._stretches.mark(name, step, device, time.perf_counter()):
            self._keep(Event(what, at, begin, end, f"device {device}"))

    def _keep(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
        if self.sink is not None:
            self.sink(event)
