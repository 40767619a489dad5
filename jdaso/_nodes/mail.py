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

_MOST_PAUSE = 2e-4
_IDLE_SECONDS = 0.1

_numbers = itertools.count(1)


class Address(NamedTuple):
    """Identifies a message: in one step all messages between two nodes have different tags."""

    node: int
    tag: int


class _Going(NamedTuple):
    """An array that is to be sent."""

    address: Address
    array: Any


class _Coming(NamedTuple):
    """An array that is being received."""

    requests: list[Any]
    array: np.ndarray

    def is_there(self) -> bool:
        """Returns whether the whole array has arrived."""
        return all(request.Test() for request in self.requests)


class Mail:
    """Messages of one node, on a communicator that nothing else uses.

    `send` and `expect` never wait. MPI makes no progress by itself, and this node's program may be
    busy computing, so a thread polls MPI as long as a message is in flight. An array is sent once
    the device has computed it, in the order of the calls of `send`.

    On failure: `take` and `drain` raise `NodeError` if another node fails or leaves, and when the
    session's limit has passed; before that they log which node is waited for.

    Args:
        control: the nodes, which all create their `Mail` together.
        record: called with the step and the start of each wait that has ended.
        alone: whether no node sends to another.
    """

    def __init__(
        self, control: Control, record: Callable[[int, float], Any], *, alone: bool = False
    ):
        self._control, self._record = control, record
        # The usual wait is measured anew for each: a pipeline's first waits are for compilers.
        self._kind = f"message of mail {next(_numbers)}"
        alone |= control.alone
        self._comm: Any = None if alone else control.duplicate().comm
        self._lock = threading.Lock()  # guards everything below
        self._outbox: deque[_Going] = deque()
        self._sending: list[tuple[Any, Any, int]] = []  # requests, with the arrays, to which nodes
        self._coming: dict[Address, _Coming] = {}
        self._broken: Exception | None = None
        self._busy, self._closed = threading.Event(), False
        self._asks = False  # whether the program waits, and polls MPI itself
        self.step, self._begun, self._longest_seconds = 0, 0, 0.0
        self.waited_seconds = 0.0
        self.bytes_sent = 0
        if self._comm is not None:
            self._thread = threading.Thread(target=self._ask_on, name="jdaso-mail", daemon=True)
            self._thread.start()

    def begin_step(self, step: int) -> None:
        """Sets the step to which the messages from here on belong.

        The longest of a step's waits counts as usual: the first may last as long as the pipeline
        takes to fill, and all others are short. The first step's waits, for compilers, are not
        counted.
        """
        if self._begun > 1:
            self._control.known.patience.note(self._kind, self._longest_seconds)
        self._begun += 1
        self.step, self._longest_seconds = step, 0.0

    def send(self, address: Address, array: Any) -> None:
        """Sends an array, which may not have been computed yet."""
        if hasattr(array, "copy_to_host_async"):  # an array on a device
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
        """Returns whether an array with this address is being received."""
        return address in self._coming

    def take(self, address: Address, what: str) -> np.ndarray:
        """Waits for an array that was expected, and returns it.

        Args:
            address: as given to `expect`.
            what: this node's activity, for messages.
        """
        self._wait(self._coming[address].is_there, what, [address.node])
        with self._lock:
            return self._coming.pop(address).array

    def drain(self) -> None:
        """Waits until everything has been sent."""
        if self._outbox or self._sending:
            with self._lock:
                nodes = {going.address.node for going in self._outbox}
                nodes |= {node for *_, node in self._sending}
            self._wait(
                lambda: not (self._outbox or self._sending),
                "waits until its results are sent",
                sorted(nodes) or None,
            )

    def _wait(self, done: Callable[[], bool], what: str, nodes: Sequence[int] | None) -> None:
        wait = Wait(
            self._control.known, self._kind, what, call=0, column=CALLS, step=self.step, nodes=nodes
        )

        def moved() -> bool:
            if self._broken is not None:
                raise self._broken
            with self._lock:
                self._progress()
                return done()

        begin, self._asks = time.perf_counter(), True
        try:
            with self._control.explained(self.step):
                poll(moved, wait.check, most_pause=_MOST_PAUSE)
        finally:
            self._asks = False
        seconds = time.perf_counter() - begin
        self.waited_seconds += seconds
        self._record(self.step, begin)
        self._longest_seconds = max(self._longest_seconds, seconds)

    def _ask_on(self) -> None:
        """The thread: polls MPI while messages are in flight, except while the program does."""
        try:
            while not self._closed:
                poll(self._look, most_pause=_MOST_PAUSE)
                self._busy.wait(_IDLE_SECONDS)
        except Exception as error:  # raised in the next wait
            self._broken = error

    def _look(self) -> bool:
        """Returns whether to begin a new poll: something moved, or nothing is in flight."""
        if self._asks:  # the program itself polls while it waits
            return self._closed
        with self._lock:
            moved = self._progress()
            left = bool(self._outbox or self._sending)
            # A list, so that each is polled even if the first has not arrived.
            left |= not all([coming.is_there() for coming in self._coming.values()])
            if not left:
                self._busy.clear()
        return moved or not left or self._closed

    def _progress(self) -> bool:
        """Sends computed arrays, and releases sent ones; returns whether there were any."""
        before = len(self._outbox) + len(self._sending)
        while self._outbox and _is_ready(self._outbox[0].array):
            address, array = self._outbox.popleft()
            array = np.ascontiguousarray(np.asarray(array))
            self.bytes_sent += array.nbytes
            for part in _parts(array):
                request = self._comm.Isend(part, address.node, address.tag)
                self._sending.append((request, array, address.node))
        self._sending = [each for each in self._sending if not each[0].Test()]
        return len(self._outbox) + len(self._sending) != before

    def close(self, after_error: bool = False) -> None:
        """Stops polling MPI; called when the session closes, also after an error."""
        del after_error
        if self._closed or self._comm is None:
            return
        self._closed = True
        self._busy.set()
        self._thread.join(timeout=2.0)

    def free(self) -> None:
        """Closes, and frees the communicator; all nodes call this together."""
        self.close()
        if self._comm is not None:
            self._control.release(self._comm)


def _is_ready(array: Any) -> bool:
    return not hasattr(array, "is_ready") or array.is_ready()


def _parts(array: np.ndarray) -> list[Any]:
    """An array as MPI takes it; empty arrays are sent too."""
    flat = array.reshape(-1).view(np.uint8)
    begins = range(0, max(flat.size, 1), _MESSAGE_BYTES)
    return [[flat[begin : begin + _MESSAGE_BYTES], byte()] for begin in begins]
