"""The engine mpi4py's pipeline of chunks, over a wire that the test drives."""

import numpy as np
import pytest

from jdaso._engine._mpi4py import _WINDOW, Mpi4pyReducer
from jdaso._types import NodeError
from jdaso._wire import WIRES

WIDTHS = (8, 8, 8, 8, 8, 8, 3)


class Request:
    def __init__(self, wire, deliver):
        self.wire, self.deliver, self.asked = wire, deliver, 0

    def Test(self):
        self.asked += 1
        if self.wire.down or self.asked <= self.wire.slow:
            return False
        self.deliver()
        return True


class OneNode:
    """A communicator of one rank, whose requests end when they were asked for a while."""

    def __init__(self, slow=0):
        self.slow, self.down, self.begun = slow, False, []

    def Set_errhandler(self, handler):
        pass

    def _move(self, sends, receives):
        self.begun.append(sends[0].size)
        sent = sends[0].copy()  # MPI may read it at once
        return Request(self, lambda: np.copyto(receives[0][:], sent))

    Ialltoall = Iallgather = _move


class Chunks:
    """An exchange whose chunk k is full of k + 1."""

    def __init__(self):
        self.count = len(WIDTHS)
        self.places = [np.zeros((1, width), np.float32) for width in WIDTHS]
        self.given, self.open, self.most_open = [], 0, 0

    def take(self, k, seconds):
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        return np.full((1, WIDTHS[k]), k + 1, np.float32)

    def place(self, k):
        return self.places[k]

    def give(self, k, residual, heads):
        self.open -= 1
        self.given.append(k)


def reducer(comm, limit_seconds=20.0):
    sums = lambda rows, width: (rows[0, :width], np.zeros(0, np.float32))  # noqa: E731
    return Mpi4pyReducer((comm, comm), WIRES["float32"], sums, lambda: None, limit_seconds)


@pytest.mark.parametrize("slow", [0, 1, 7])
def test_all_chunks_come_back_in_order_and_several_are_on_the_wire(slow):
    comm, work = OneNode(slow), Chunks()
    reduce = reducer(comm)
    for _ in range(2):
        work = Chunks()
        reduce(work)
        assert work.given == list(range(work.count))
        for k, place in enumerate(work.places):
            np.testing.assert_array_equal(place, k + 1)
        assert work.most_open <= 2 * _WINDOW
    assert work.most_open > 1 or slow == 0


def test_an_exchange_that_never_ends_is_an_error_and_no_other_begins():
    comm = OneNode()
    reduce = reducer(comm, limit_seconds=0.05)
    comm.down = True
    with pytest.raises(NodeError, match=r"within 0\.05 s"):
        reduce(Chunks())
    comm.down = False  # what was lost comes late
    begun = len(comm.begun)
    with pytest.raises(NodeError, match="before this one did not end"):
        reduce(Chunks())
    assert len(comm.begun) == begun
