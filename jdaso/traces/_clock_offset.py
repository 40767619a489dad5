"""The offset of a node's clock from node 0's, measured by round-trip messages.

A node asks node 0 for its time T. It sends the request at t0 and has the answer at t1, both on its
own clock. T was read in between, so the node's clock is behind by ``T - (t0 + t1) / 2``, give or
take ``(t1 - t0) / 2``. Of several rounds the fastest counts: the others were delayed. (Cristian
1989, "Probabilistic clock synchronization".)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from .._mpi.requests import finish

_ROUNDS = 24


class Offset(NamedTuple):
    """One measurement.

    Attributes:
        at_seconds: time of the measurement, on this node's clock.
        seconds: the difference to add to this node's clock to get node 0's.
        bound_seconds: the largest possible error.
    """

    at_seconds: float = 0.0
    seconds: float = 0.0
    bound_seconds: float = 0.0


def fastest(rounds: Iterable[tuple[float, float, float]]) -> Offset:
    """The offset from rounds ``(sent, node 0's time, answered)``."""
    sent, there, answered = min(rounds, key=lambda x: x[2] - x[0])
    middle = (sent + answered) / 2
    return Offset(middle, there - middle, (answered - sent) / 2)


def measure(
    comm: Any, check: Callable[[], None], limit_seconds: float, clock=time.perf_counter
) -> Offset | None:
    """Measures this node's offset; a collective call.

    Args:
        comm: an mpi4py communicator of all nodes, used for nothing else.
        check: called while waiting; its errors are passed on.
        limit_seconds: the longest time that this node spends on the measurement.
        clock: this node's clock, in seconds.

    Returns:
        The offset; None if the limit passed first. Node 0's offset is 0 in any case.
    """
    node, nodes = comm.Get_rank(), comm.Get_size()
    talk = _Talk(comm, check, time.monotonic() + limit_seconds)
    if node > 0:
        rounds = []
        for _ in range(_ROUNDS):
            sent = clock()
            there = talk.send(0, 0.0) and talk.receive(0)
            if not there:
                return None
            rounds.append((sent, there[0], clock()))
        return fastest(rounds)
    for other in range(1, nodes):
        for _ in range(_ROUNDS):
            if talk.receive(other) is None or not talk.send(other, clock()):
                return None
    return Offset(clock())


class _Talk:
    """Numbers to and from other nodes, until a time limit."""

    def __init__(self, comm: Any, check: Callable[[], None], until: float):
        self._comm, self._check, self._until = comm, check, until

    def send(self, node: int, number: float) -> bool:
        """Returns whether the number was sent in time."""
        data = np.array([number])
        return self._wait(self._comm.Isend(data, node), data)

    def receive(self, node: int) -> tuple[float] | None:
        """The number from a node; None if it did not arrive in time."""
        data = np.zeros(1)
        return (float(data[0]),) if self._wait(self._comm.Irecv(data, node), data) else None

    def _wait(self, request: Any, data: np.ndarray) -> bool:
        left = self._until - time.monotonic()
        # Without a pause, which would be measured too.
        return finish(request, self._check, data, limit_seconds=left, most_pause=0.0)
