"""Arrays from node to node: sent and received without blocking, by one thread, in any order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._heartbeat import CALLS
from .._session import Session
from .._topology import poll
from .._watchdog import Wait

_MESSAGE_BYTES = 1 << 30
"""Longest message: MPI counts have 32 bits."""

_MOST_PAUSE = 2e-4


class Address(NamedTuple):
    """Which message: of messages between two nodes all have different tags in a step."""

    node: int
    tag: int


class _Going(NamedTuple):
    """What is to be sent, or is being sent."""

    address: Address
    array: Any


class Mail:
    """Messages of one node, on a communicator that nobody else uses.

    `send` and `expect` never wait. What was sent leaves when the device has computed it and
    whenever this node next waits for something; MPI moves nothing by itself.

    On failure: `take` and `drain` raise `NodeError` where another node fails or leaves, and when
    the session's limit has passed; before that they say in the log who is waited for.

    Args:
        session: the nodes. All make their mails together.
    """

    def __init__(self, session: Session):
        self._session, self._lookout = session, session.control.lookout
        session.mails += 1
        # What is usual is learned anew: the first waits of a pipeline are for compilers.
        self._kind = f"message of pipeline {session.mails}"
        self._comm: Any = session.control.duplicate().comm if session.num_nodes > 1 else None
        self._outbox: list[_Going] = []
        self._sending: list[tuple[Any, Any]] = []  # requests, and what they send
        self._coming: dict[Address, tuple[list[Any], np.ndarray]] = {}
        self.step = 0
        self.waited_seconds = 0.0
        self.bytes_sent = 0

    def send(self, address: Address, array: Any) -> None:
        """Sends an array, which may not have been computed yet."""
        if isinstance(array, jax.Array):
            array.copy_to_host_async()
        self._outbox.append(_Going(address, array))
        self._progress()

    def expect(self, address: Address, shape: Sequence[int], dtype: Any) -> None:
        """Begins to receive an array."""
        array = np.empty(tuple(shape), dtype)
        parts = [self._comm.Irecv(part, address.node, address.tag) for part in _parts(array)]
        self._coming[address] = parts, array

    def expects(self, address: Address) -> bool:
        """Whether an array is being received from there."""
        return address in self._coming

    def take(self, address: Address, what: str) -> np.ndarray:
        """An array that was expected; waits for it.

        Args:
            address: as given to `expect`.
            what: what it is, for messages.
        """
        requests, array = self._coming[address]
        self._wait(lambda: all(request.Test() for request in requests), what, [address.node])
        del self._coming[address]
        return array

    def drain(self) -> None:
        """Waits until all has left that was sent."""
        if self._outbox or self._sending:
            receivers = sorted({going.address.node for going in self._outbox})
            self._wait(
                lambda: not (self._outbox or self._sending),
                "waits until its results are sent",
                receivers or None,
            )

    def _wait(self, done: Callable[[], bool], what: str, nodes: Sequence[int] | None) -> None:
        session = self._session
        wait = Wait(
            self._lookout, self._kind, what, call=0, column=CALLS, step=self.step, nodes=nodes
        )

        def check() -> None:
            if (why := wait.why_no_longer()) is not None:
                raise session.control.error(why, self.step)

        def moved() -> bool:
            self._progress()
            return done()

        begin = time.perf_counter()
        poll(moved, check, float("inf"), _MOST_PAUSE)
        seconds = time.perf_counter() - begin
        self.waited_seconds += seconds
        if self.step > 0:
            self._lookout.patience.note(self._kind, seconds)

    def _progress(self) -> None:
        """Hands over what has been computed, in its order, and lets go of what has been sent."""
        while self._outbox and _is_ready(self._outbox[0].array):
            address, array = self._outbox.pop(0)
            array = np.ascontiguousarray(np.asarray(array))
            self.bytes_sent += array.nbytes
            for part in _parts(array):
                request = self._comm.Isend(part, address.node, address.tag)
                self._sending.append((request, array))
        self._sending = [pair for pair in self._sending if not pair[0].Test()]


def _is_ready(array: Any) -> bool:
    return not isinstance(array, jax.Array) or array.is_ready()  # pyright: ignore


def _parts(array: np.ndarray) -> list[Any]:
    """An array as MPI takes it; empty ones are sent too."""
    from mpi4py import MPI

    flat = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
    begins = range(0, max(flat.size, 1), _MESSAGE_BYTES)
    return [[flat[begin : begin + _MESSAGE_BYTES], MPI.BYTE] for begin in begins]
