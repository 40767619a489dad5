"""A channel: one optimizer's exchanges in the background, on its own communicator and thread.

Compiled steps call `start`, `wait` and others from host callbacks. The thread of the `Worker`
reduces the chunks of a ticket in order, whatever the order in which they become ready, so that all
nodes meet in the same calls:

    on node 0 chunk 1 is ready first, on node 1 chunk 0. If chunks were taken as they come, node 0
    would wait in the reduction of chunk 1 and node 1 in that of chunk 0, for ever.

Callbacks never raise. If a node drives several devices, one of them is in the callback and the
others wait for it in a collective; an exception would leave them there. An error is kept; the
header's status word reports it to all devices, and they all raise it together (`Session.report`).

A step may be computed and discarded: `optax.MultiSteps` calls an update k times and keeps the last
result, and some programs compile by a first call. So an exchange may be started again under its
ticket; the new one replaces the first once that has ended (on all nodes alike). The results of late
exchanges are kept by their `Versions`. A piece must come from the same device each time. A piece
from another device is a mistake: several devices enqueue a piece that only one of them should,
along an axis that the optimizer was not given.

No thread waits while it holds the lock: the wait may need parts of other devices, whose callbacks
take the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .._base.errors import NodeError
from .._nodes.control import Control
from .._nodes.wait import Wait
from .._payload.layout import Layout
from .._payload.wire import Wire
from .._payload.words import FAILED, HEADER, STATUS
from ..traces._timeline import Timeline
from .base import Reducer
from .flights import Flights
from .in_flight import EARLIER_RUN, InFlight, Numbers
from .pace import Pace, working_seconds
from .shared_header import SharedHeader
from .staging import Staging, StagingMemory
from .worker import Worker

log = logging.getLogger("jdaso")

_LEAVE_SECONDS, _END_SECONDS = 1.0, 30.0
"""Time for a thread to return from MPI after a failed exchange, and to end when nothing is left to
do."""


class Channel:
    """Exchanges of one layout on one wire, one after the other.

    Args:
        layout: the layout of the exchanged leaves.
        wire: the wire format.
        reducer: the engine's reducer.
        control: the nodes.
        timeline: records the channel's activity.
        pace: the times of the session's steps and exchanges.
        shared: the header of all ranks of this node; None if this is its only one.
        sends: whether anything is sent.
        number: distinguishes the channels of a session; the same on all nodes.
    """

    def __init__(
        self,
        layout: Layout,
        wire: Wire,
        reducer: Reducer,
        control: Control,
        timeline: Timeline,
        pace: Pace,
        *,
        shared: SharedHeader | None = None,
        sends: bool = True,
        number: int = 1,
    ):
        self.layout, self.wire = layout, wire
        self._control, self._timeline = control, timeline
        self._nodes = control.topology.num_nodes
        self.staging = Staging(layout, wire)
        self._number, self._flights = number, Flights(self.staging, number)
        self.versions: dict[Any, Any] = {}  # the `Versions` of late exchanges, by merge rule
        self.sums: Any = None  # the `Sums` of exchanges that a step waits for
        self._lock = threading.Lock()
        self._pace = pace
        self.closed = False
        self.worker = Worker(
            layout,
            wire,
            self.staging,
            reducer,
            control,
            timeline,
            pace,
            shared=shared,
            sends=sends,
            lane="" if number == 1 else f" {number}",
        )

    def start(
        self,
        ticket: int,
        head: np.ndarray,
        begin: Callable[[InFlight], Numbers],
        *,
        owner: int = 0,
        device: int = 0,
        blocking: bool = False,
        place: StagingMemory | None = None,
    ) -> int:
        """Starts an exchange; returns the ticket.

        Args:
            ticket: the exchange.
            head: this node's header.
            begin: returns the exchange's numbers, once no other exchange is in flight.
            owner: the optimizer, which may start its exchange again while it is in flight; 0 for
                an optimizer that may not.
            device: the local device that calls.
            blocking: whether the step waits for the result.
            place: takes the sums; None for memory of the exchange's own.
        """
        started = time.perf_counter()
        new = partial(self._flights.enroll, ticket, owner, blocking=blocking, place=place)
        flight = self._enter(ticket, head, owner, device, new)
        entered, working = time.perf_counter(), working_seconds()
        self._pace.wait(entered - started)  # for an exchange that was left behind
        if flight.error is None:
            flight.stands_since = started
            try:
                numbers = flight.numbers = begin(flight)  # the exchange drops them at its end
                if flight.error is not None:  # all nodes see it
                    flight.amend({STATUS: FAILED})
                for k in numbers.write():
                    flight.ready[k].set()
            except Exception as error:  # the wait for this must not run to its limit
                flight.error = self._control.error(self._control.explain(error), flight.step)
                raise
            self._lose("copy", flight, started, device, size_bytes=numbers.nbytes)
            if not blocking:
                self._pace.copy(time.perf_counter() - entered, working_seconds() - working)
        return ticket

    def _enter(
        self, ticket: int, head: np.ndarray, owner: int, device: int, new: Callable[[], InFlight]
    ) -> InFlight:
        """The exchange with that ticket, begun; or the one that must not be begun again."""
        error: NodeError | None = None
        while True:
            with self._lock:
                if self.closed:
                    raise self._control.closed_error()
                if self._control.given_up is not None:  # a thread may still send from its memory
                    raise self._control.given_up
                flight = self._flights.get(ticket)
                repeated = ticket
                if flight is not None and not flight.merged:
                    if flight.is_left_to(owner):
                        repeated = None  # its result is lost, and the log says so
                    elif (text := flight.why_not_again(owner, device)) is not None:
                        flight.error = flight.error or self._control.error(text, flight.step)
                    if flight.error is not None:
                        return flight
                if error is not None or not self.in_flight():
                    return self._begin(new(), head, device, error)
            error = self._drain(None, repeated=repeated)

    def _begin(
        self, flight: InFlight, head: np.ndarray, device: int, error: NodeError | None
    ) -> InFlight:
        """Begins an exchange, once none is in flight; the lock is held.

        After an error the exchange does not begin: waiting for it returns the error.
        """
        flight.device = device
        if error is not None:  # the data on the wire may still be read
            flight.error = error
            flight.done.set()
            return flight
        flight.started = self._control.known.heartbeats.note_start(self._number)
        self.worker.begin(flight, head)
        return flight

    def wait(self, ticket: int, device: int = 0, *, owner: int = 0) -> np.ndarray:
        """Waits for all chunks; returns the headers of all nodes, int32 ``[nodes, HEADER]``.

        Args:
            ticket: the exchange.
            device: the local device that waits.
            owner: the optimizer that waits, see `start`; not given an exchange that was given up
                for another optimizer.

        On failure: the status word of the first header is 1, and `error` holds the cause.
        """
        begin = time.perf_counter()
        flight = self._flights.of(ticket, owner)
        heads = np.zeros((self._nodes, HEADER), np.int32)
        if flight is None:
            return self._refuse(heads, ticket, owner)
        flight.asked = True
        error = flight.error or self._await(flight)
        flight.waited = True
        self._pace.wait(self._lose("wait", flight, begin, device))
        if flight.blocking:
            self._timeline.stand("mean", flight.step, flight.stands_since, device=None)
        else:
            self._timeline.stand("wait", flight.step, begin, device=device)
        if error is not None:
            flight.error = error
            heads[:, STATUS] = FAILED
            (self._control.refuse if flight.goes_on else self._control.note_broken)(error)
            return heads
        assert flight.heads is not None
        return flight.heads

    def flight(self, ticket: int, owner: int) -> InFlight | None:
        """An optimizer's exchange; None if there is none, or if it was given up."""
        with self._lock:
            return self._flights.of(ticket, owner)

    def note_merged(self, ticket: int) -> None:
        """Notes that the result of an exchange was taken."""
        if (flight := self._flights.get(ticket)) is not None:
            flight.merged = True

    def finished(self, flight: InFlight) -> None:
        """Waits for an exchange; any thread may call this.

        Raises:
            NodeError: the exchange failed.
        """
        if (error := flight.error or self._await(flight)) is not None:
            raise error

    def adopt(self, ticket: int, owner: int, heads: np.ndarray) -> InFlight:
        """Takes an exchange of an earlier run, to be merged under its ticket.

        Raises:
            NodeError: an exchange that is still in flight failed.
        """
        if (error := self._drain(None)) is not None:
            raise error
        with self._lock:
            flight = self._flights.enroll(ticket, owner)
            flight.let_go()
        flight.heads, flight.device = heads, EARLIER_RUN
        flight.done.set()
        return flight

    @property
    def repeats(self) -> bool:
        """True if an exchange that loses a node is begun again, from the same rows."""
        return self._control.survives

    def in_flight(self) -> list[InFlight]:
        """Exchanges that were never waited for, or whose wait ended early, with an error."""
        return self._flights.open()

    def close(self, limit_seconds: float | None, *, after_error: bool = False) -> bool:
        """Completes exchanges in flight and ends the thread; False if the thread did not end.

        An error is kept in `Control.broken`. After an error of the program itself, a result that
        was never merged is only a consequence and is logged as debug information.
        """
        self.closed = True
        error = self._drain(limit_seconds, logging.DEBUG if after_error else logging.WARNING)
        if error is not None:
            self._control.note_broken(error)
        limit = _LEAVE_SECONDS if error is not None else limit_seconds or _END_SECONDS
        return self.worker.end(limit)

    def _drain(
        self,
        limit_seconds: float | None,
        level: int = logging.WARNING,
        repeated: int | None = None,
    ) -> NodeError | None:
        """Completes exchanges that a run left behind, so that all nodes stay in step.

        Must be called without the lock. The exchange `repeated` does not count as lost.
        """
        for flight in self.in_flight():
            error = self._await(flight, limit_seconds)
            with self._lock:
                first, flight.waited = not flight.waited, True
            if error is not None and (first or not flight.done.is_set()):  # else reported by a wait
                return error
            if first and flight.ticket != repeated:
                log.log(
                    level,
                    "%s The exchange started at step %d was completed but never merged. Call "
                    "jdaso.finalize(params, opt_state, session) wherever a run stops.",
                    self._control.topology.prefix(),
                    flight.step,
                )
        return None

    def lost_version(self, ticket: int, step: int) -> NodeError:
        """The error for a state whose version is gone."""
        return self._control.error(
            f"The optimizer state goes on from the exchange started at step {ticket - 1}, and this "
            "session no longer has its numbers: the state is older than the last two exchanges, or "
            "comes from another session, or from a run of one node, or this daso trains another "
            "model too. Go on with the state of the last update, restore a checkpoint, or make a "
            'daso for each model, as in daso(..., name="second").',
            step,
        )

    def refuse(self, error: NodeError) -> None:
        """Keeps an error that ends a call, but not the session."""
        self._control.refuse(error)

    def _await(self, flight: InFlight, limit_seconds: float | None = None) -> NodeError | None:
        """Waits for the thread, and checks other nodes meanwhile."""
        wait = Wait(
            self._control.known,
            "mean" if flight.blocking else "exchange",
            f"waits for the exchange started at step {flight.step}",
            call=flight.started[1],
            column=flight.started[0],
            step=flight.step,
            limit_seconds=limit_seconds,
        )
        while not flight.done.wait(0.05):
            if (why := wait.why_no_longer()) is not None:
                return self._control.give_up(self._control.error(why, flight.step))
        return flight.error

    def _lose(
        self,
        name: str,
        flight: InFlight,
        begin_seconds: float,
        device: int,
        *,
        size_bytes: int | None = None,
    ) -> float:
        seconds = self._timeline.record(
            name,
            flight.step,
            begin_seconds,
            lane=f"device {device}",
            size_bytes=size_bytes,
            of=flight.name,
        )
        if not flight.blocking:
            self._timeline.add(lost_seconds=seconds)
        return seconds

    def _refuse(self, heads: np.ndarray, ticket: int, owner: int) -> np.ndarray:
        text = (
            f"No exchange with ticket {ticket} is known here: the optimizer state comes from "
            "another session or process, or from before the last exchange. Restore a checkpoint. "
            "With wire float32 and no outer optimizer a run can also go on without that exchange: "
            "set state.ticket to 0s on all nodes."
        )
        if self._flights.gave_up(ticket, owner):
            text = (
                f"The exchange started at step {ticket - 1} was given up, because another "
                "optimizer of equal shapes has started one meanwhile. If both are in use, give the "
                "second its own name, jdaso.daso(..., name='second'); the state of an optimizer "
                "that was replaced cannot be used further."
            )
        self._control.refuse(self._control.error(text, ticket - 1))
        heads[:, STATUS] = FAILED
        return heads
