"""Arrays from node to node: sent and received without blocking, by one thread, in any order."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._mpi.requests import byte, poll
from .control import Control
from .heartbeat import CALLS
from .wait import Wait

_MESSAGE_BYTES = 1 << 30
"""Longest message: MPI counts have 32 bits."""

_LEAST_PAUSE, _MOST_PAUSE = 5e-5, 2e-4
_IDLE_SECONDS = 0.1

_numbers = itertools.count(1)


class Address(NamedTuple):
    """Which message: of messages between two nodes all have different tags in a step."""

    node: int
    tag: int


class _Going(NamedTuple):
    """What is to be sent, or is being sent."""

    address: Address
    array: Any


class _Coming(NamedTuple):
    """What is being received."""

    requests: list[Any]
    array: np.ndarray

    def is_there(self) -> bool:
        """Whether all of it has come."""
        return all(request.Test() for request in self.requests)


class Mail:
    """Messages of one node, on a communicator that nobody else uses.

    `send` and `expect` never wait. MPI moves nothing by itself, and this node's program may be
    busy computing: a thread asks MPI on, as long as something is on its way. What was sent leaves
    when the device has computed it, in the order in which it was sent.

    On failure: `take` and `drain` raise `NodeError` where another node fails or leaves, and when
    the session's limit has passed; before that they say in the log who is waited for.

    Args:
        control: the nodes. All make their mails together.
        record: called with the step and the begin of each wait that has ended.
    """

    def __init__(self, control: Control, record: Callable[[int, float], Any]):
        self._control, self._record = control, record
        # What is usual is learned for each anew: the first waits of a pipeline are for compilers.
        self._kind = f"message of mail {next(_numbers)}"
        self._comm: Any = None if control.alone else control.duplicate().comm
        self._lock = threading.Lock()  # of all that follows
        self._outbox: deque[_Going] = deque()
        self._sending: list[tuple[Any, Any]] = []  # requests, and what they send
        self._coming: dict[Address, _Coming] = {}
        self._broken: Exception | None = None
        self._busy, self._closed = threading.Event(), False
        self._asks = False  # whether the program waits, and asks MPI on itself
        self.step, self._longest_seconds = 0, 0.0
        self.waited_seconds = 0.0
        self.bytes_sent = 0
        if self._comm is not None:
            self._thread = threading.Thread(target=self._ask_on, name="jdaso-mail", daemon=True)
            self._thread.start()

    def begin_step(self, step: int) -> None:
        """Says which step the messages from here on belong to.

        Of a step's waits the longest is usual: one at its begin may be as long as the pipeline
        takes to fill, and all others short. The first step's are for compilers.
        """
        if self.step > 0:
            self._control.known.patience.note(self._kind, self._longest_seconds)
        self.step, self._longest_seconds = step, 0.0

    def send(self, address: Address, array: Any) -> None:
        """Sends an array, which may not have been computed yet."""
        if hasattr(array, "copy_to_host_async"):  # of a device
            array.copy_to_host_async()
        with self._lock:
            self._outbox.append(_Going(address, array))
        self._busy.set()

    def expect(self, address: Address, shape: Sequence[int], dtype: Any) -> None:
        """Begins to receive an array."""
        array = np.empty(tuple(shape), dtype)
        with self._lock:
            parts = [self._comm.Irecv(part, address.node, address.tag) for part in _parts(array)]
            self._coming[address] = _Coming(parts, array)
        self._busy.set()

    def expects(self, address: Address) -> bool:
        """Whether an array is being received from there."""
        return address in self._coming

    def take(self, address: Address, what: str) -> np.ndarray:
        """An array that was expected; waits for it.

        Args:
            address: as given to `expect`.
            what: what it is, for messages.
        """
        self._wait(self._coming[address].is_there, what, [address.node])
        with self._lock:
            return self._coming.pop(address).array

    def drain(self) -> None:
        """Waits until all has left that was sent."""
        if self._outbox or self._sending:
            self._wait(
                lambda: not (self._outbox or self._sending),
                "waits until its results are sent",
                sorted({going.address.node for going in list(self._outbox)}) or None,
            )

    def _wait(self, done: Callable[[], bool], what: str, nodes: Sequence[int] | None) -> None:
        wait = Wait(
            self._control.known, self._kind, what, call=0, column=CALLS, step=self.step, nodes=nodes
        )

        def check() -> None:
            if (why := wait.why_no_longer()) is not None:
                raise self._control.error(why, self.step)

        def moved() -> bool:
            if self._broken is not None:
                raise self._broken
            with self._lock:
                self._progress()
                return done()

        begin, self._asks = time.perf_counter(), True
        try:
            with self._control.explained(self.step):
                poll(moved, check, float("inf"), _MOST_PAUSE)
        finally:
            self._asks = False
        seconds = time.perf_counter() - begin
        self.waited_seconds += seconds
        self._record(self.step, begin)
        self._longest_seconds = max(self._longest_seconds, seconds)

    def _ask_on(self) -> None:
        """The thread."""
        pause = _LEAST_PAUSE
        while not self._closed:
            if self._asks:  # the program itself, as it waits
                time.sleep(_MOST_PAUSE)
                continue
            try:
                with self._lock:
                    moved = self._progress()
                    left = bool(self._outbox or self._sending)
                    # A list: each is asked, though the first may not have come.
                    left |= not all([coming.is_there() for coming in self._coming.values()])
            except Exception as error:  # whoever waits next is told
                self._broken = error
                return
            if not left:
                self._busy.clear()
                self._busy.wait(_IDLE_SECONDS)
            pause = _LEAST_PAUSE if moved else min(2 * pause, _MOST_PAUSE)
            time.sleep(pause)

    def _progress(self) -> bool:
        """Hands over what has been computed, and lets go of what has been sent; whether any was."""
        before = len(self._outbox) + len(self._sending)
        while self._outbox and _is_ready(self._outbox[0].array):
            address, array = self._outbox.popleft()
            array = np.ascontiguousarray(np.asarray(array))
            self.bytes_sent += array.nbytes
            for part in _parts(array):
                request = self._comm.Isend(part, address.node, address.tag)
                self._sending.append((request, array))
        self._sending = [pair for pair in self._sending if not pair[0].Test()]
        return len(self._outbox) + len(self._sending) != before

    def close(self, after_error: bool = False) -> None:
        """Asks nothing of MPI any more; called as the session closes, after an error too."""
        del after_error
        if self._closed or self._comm is None:
            return
        self._closed = True
        self._busy.set()
        self._thread.join(timeout=2.0)


def _is_ready(array: Any) -> bool:
    return not hasattr(array, "is_ready") or array.is_ready()


def _parts(array: np.ndarray) -> list[Any]:
    """An array as MPI takes it; empty ones are sent too."""
    flat = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
    begins = range(0, max(flat.size, 1), _MESSAGE_BYTES)
    return [[flat[begin : begin + _MESSAGE_BYTES], byte()] for begin in begins]
