"""How far a node's clock is from node 0's, measured by messages there and back.

A node asks node 0 for its time T: sent at t0, answered by t1, both of its own clock. T was read
between them, so its clock is behind by ``T - (t0 + t1) / 2``, give or take ``(t1 - t0) / 2``. Of
several rounds the fastest counts: the others have waited for something. (Cristian 1989,
"Probabilistic clock synchronization".)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

_ROUNDS = 24


class Offset(NamedTuple):
    """One measurement.

    Attributes:
        at_seconds: of this node's clock, when it was made.
        seconds: what is added to this node's clock to have node 0's.
        bound_seconds: how far it can be off.
    """

    at_seconds: float = 0.0
    seconds: float = 0.0
    bound_seconds: float = 0.0


def fastest(rounds: Iterable[tuple[float, float, float]]) -> Offset:
    """What rounds ``(sent, node 0's time, answered)`` come to."""
    sent, there, answered = min(rounds, key=lambda x: x[2] - x[0])
    middle = (sent + answered) / 2
    return Offset(middle, there - middle, (answered - sent) / 2)


def measure(
    comm: Any, check: Callable[[], None], limit_seconds: float, clock=time.perf_counter
) -> Offset | None:
    """This node's offset; all nodes call it together.

    Args:
        comm: an mpi4py communicator of all nodes, used for nothing else.
        check: called while waiting; what it raises comes out.
        limit_seconds: the longest that this node gives it.
        clock: of this node, in seconds.

    Returns:
        The offset; None where it was not done by then. Node 0's is 0 all the same.
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
    """Numbers to and from other nodes, until a time; what is left open then is kept for MPI."""

    open: list[Any] = []  # noqa: RUF012  (of all: MPI may yet write there)

    def __init__(self, comm: Any, check: Callable[[], None], until: float):
        self._comm, self._check, self._until = comm, check, until

    def send(self, node: int, number: float) -> bool:
        """Whether it has gone."""
        data = np.array([number])
        return self._wait(self._comm.Isend(data, node), data)

    def receive(self, node: int) -> tuple[float] | None:
        """What has come."""
        data = np.zeros(1)
        return (float(data[0]),) if self._wait(self._comm.Irecv(data, node), data) else None

    def _wait(self, request: Any, data: np.ndarray) -> bool:
        done = False
        try:
            while not (done := request.Test()):  # without a pause: it would be measured too
                if time.monotonic() > self._until:
                    return False
                self._check()
                time.sleep(0)
        finally:
            if not done:
                self.open.append((request, data))
        return True
