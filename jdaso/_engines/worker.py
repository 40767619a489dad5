"""The thread of a channel: encodes, reduces and sums its exchanges, one after another.

An error is kept in the exchange: the thread goes on with the next one.
"""

from __future__ import annotations

import logging
import queue
import threading
from functools import partial

import numpy as np

from .._base.errors import NodeError
from .._nodes.compare import crossed
from .._nodes.control import Control
from .._payload.layout import Layout
from .._payload.wire import Wire
from .._payload.words import BAD_LEAF, CHECKSUM, GONE, STATUS, TIMES, WELL, signed
from ..traces._timeline import Timeline
from .base import Reducer
from .in_flight import InFlight
from .pace import Pace, Stopwatch
from .shared_header import SharedHeader
from .staging import Staging

log = logging.getLogger("jdaso")


class Worker:
    """The thread of a channel.

    Args:
        layout: the layout of the exchanged leaves.
        wire: the wire format.
        staging: makes the memory of exchanges.
        reducer: the engine's reducer.
        control: the nodes.
        timeline: records the thread's activity.
        pace: the times of the session's steps and exchanges.
        shared: the header of all ranks of this node; None if this is its only one.
        sends: whether anything is sent.
        lane: distinguishes the channels of a session in the timeline.
    """

    def __init__(
        self,
        layout: Layout,
        wire: Wire,
        staging: Staging,
        reducer: Reducer,
        control: Control,
        timeline: Timeline,
        pace: Pace,
        *,
        shared: SharedHeader | None,
        sends: bool,
        lane: str,
    ):
        self.layout, self.wire, self.staging = layout, wire, staging
        self.reducer, self._sends, self.lane = reducer, sends, lane
        self._nodes, self._last = control.topology.num_nodes, len(staging.shapes) - 1
        self._control, self._timeline, self._pace = control, timeline, pace
        self._stopwatch, self._shared = Stopwatch(pace), shared
        self._queue: queue.SimpleQueue[InFlight | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="jdaso-channel", daemon=True)
        self._thread.start()

    def begin(self, flight: InFlight, head: np.ndarray) -> None:
        """Begins an exchange whose chunks follow, with this node's header.

        The header also carries the optimizer, and the times that this node measured.
        """
        self._stopwatch.start(flight.step, blocking=flight.blocking)
        if not flight.blocking:
            self._pace.begin()
        words = np.array(head, np.int32)
        words.view(np.float32)[TIMES] = self._stopwatch.measured
        words[STATUS] = signed(flight.owner)
        assert flight.rows is not None
        flight.rows.set_header(words)
        self._queue.put(flight)

    def end(self, limit_seconds: float) -> bool:
        """Ends the thread after the exchanges enqueued; False if the thread did not end in time."""
        self._queue.put(None)
        self._thread.join(timeout=limit_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (flight := self._queue.get()) is not None:
            try:
                self._exchange(flight)
            except Exception as error:
                log.debug("exchange of step %d failed", flight.step, exc_info=True)
                text = self._control.explain(error)
                prefix = (
                    "" if text.startswith("[node") else self._control.topology.prefix(flight.step)
                )
                flight.error = NodeError(f"{prefix} {text}".strip())
            if not flight.blocking:
                self._pace.end()
            flight.done.set()
        self.reducer.close()

    def _exchange(self, flight: InFlight) -> None:
        self.reducer(_Chunks(self, flight))
        self._unsign(flight)
        if flight.error is None:
            assert flight.numbers is not None
            flight.numbers.finish(flight)
        flight.let_go()
        kind = "mean" if flight.blocking else "exchange"
        flight.seconds = self._timeline.record(
            kind,
            flight.step,
            flight.begin_seconds,
            lane=f"exchange{self.lane}",
            size_bytes=sum(self.staging.sizes),
            of=flight.name,
        )
        self._control.known.patience.note(kind, flight.seconds)
        if flight.blocking:
            self._timeline.add(blocking_means=1, blocking_seconds=flight.seconds)
        else:
            self._stopwatch.note_exchange(flight.seconds)
            self._timeline.add(exchanges=1, exchange_seconds=flight.seconds)

    def _unsign(self, flight: InFlight) -> None:
        """Checks that all nodes have met with one optimizer, and removes its number again."""
        if flight.heads is None:
            return
        if (text := crossed(flight.heads)) is not None:
            # Two optimizers were paired crosswise: all nodes have detected that.
            flight.goes_on, flight.error = True, self._control.error(text, flight.step)
        flight.heads = np.array(flight.heads)
        flight.heads[flight.heads[:, STATUS] > GONE, STATUS] = WELL

    def take(self, flight: InFlight, k: int, limit_seconds: float) -> np.ndarray:
        """Encodes chunk k of an exchange, once it is there; see `Work`."""
        if not flight.ready[k].wait(limit_seconds):
            raise NodeError(f"Chunk {k} was never handed over.")
        flight.take(k)
        if k not in flight.encoded:  # an engine that repeats an exchange takes k again
            assert flight.numbers is not None and flight.rows is not None
            flight.encoded[k], flight.checksums[k] = flight.numbers.encode(
                k, partial(flight.rows, k)
            )
            if not flight.blocking:
                self._look_for_bad(flight, k, flight.encoded[k])
            if k == self._last and self._shared is not None:
                flight.rows.set_header(self._shared.of(flight.rows.header()))
        return flight.encoded[k]

    def give(
        self, flight: InFlight, k: int, residual: np.ndarray, heads: np.ndarray | None
    ) -> None:
        """Stores the results of chunk k; see `Work`."""
        flight.residuals.append(residual)
        flight.heads = heads
        lane, begin = flight.taken.pop(k)
        self._timeline.record(
            "chunk",
            flight.step,
            begin,
            lane=f"worker{self.lane}.{lane}" if self.lane else f"worker {lane}",
            chunk=k,
            size_bytes=self.staging.sizes[k],
            of=flight.name,
        )
        if self._sends:
            assert flight.place is not None
            moved = self.staging.sizes[k] + flight.place.rows[k].nbytes
            self._timeline.add(bytes_sent=moved * (self._nodes - 1) // self._nodes)

    def _look_for_bad(self, flight: InFlight, k: int, rows: np.ndarray) -> None:
        """Finds the first leaf that is not finite, for the header, which goes with the last chunk.

        In this thread the search costs the step no time.
        """
        width = self.staging.shapes[k][1]
        if flight.bad_leaf == 0 and (index := self.wire.first_bad(rows[:, :width])) is not None:
            flight.bad_leaf = 1 + self.layout.leaf_at(k, index)
        if k == self._last:
            assert flight.rows is not None
            words = flight.rows.header()
            total = np.uint32((int(words[CHECKSUM]) + sum(flight.checksums.values())) & 0xFFFFFFFF)
            bad = words[BAD_LEAF] or flight.bad_leaf
            flight.amend({BAD_LEAF: int(bad), CHECKSUM: int(total.view(np.int32))})


class _Chunks:
    """An exchange as its engine sees it."""

    def __init__(self, worker: Worker, flight: InFlight):
        assert flight.place is not None
        self.count = len(flight.place.rows)
        self.take, self.give = partial(worker.take, flight), partial(worker.give, flight)
        self._rows, self._ready = flight.place.rows, flight.ready

    def ready(self, k: int) -> bool:
        """See `Work`."""
        return self._ready[k].is_set()

    def place(self, k: int) -> np.ndarray:
        """See `Work`."""
        return self._rows[k]
