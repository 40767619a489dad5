"""The engine mpi4py's pipeline of chunks, over a wire that the test drives."""

import threading
import time
import weakref

import numpy as np
import pytest

from jdaso._engine._mpi4py import WINDOW, Mpi4pyReducer, _Helper
from jdaso._types import NodeError
from jdaso._wire import WIRES

WIDTHS = (8, 8, 8, 8, 8, 8, 3)


class Request:
    def __init__(self, comm, deliver):
        self.comm, self.deliver, self.asked, self.done = comm, deliver, 0, False

    def Test(self):
        self.comm.progress()
        return self.done


class OneNode:
    """A communicator of one rank. Once one is due all that are open are delivered."""

    def __init__(self, slow=0):
        self.slow, self.down, self.begun, self.most = slow, False, [], 0

    def Set_errhandler(self, handler):
        pass

    def progress(self):
        open_ = [request for request in self.begun if not request.done]
        for request in open_:
            request.asked += 1
        if not self.down and any(request.asked > self.slow for request in open_):
            for request in reversed(open_):
                request.deliver()
                request.done = True

    def _move(self, sends, receives):
        sent = sends[0].copy()  # MPI may read it at once
        self.begun.append(Request(self, lambda: np.copyto(receives[0], sent)))
        self.most = max(self.most, sum(not request.done for request in self.begun))
        return self.begun[-1]

    Ialltoall = Iallgather = _move


class Chunks:
    """An exchange whose chunk k is full of k + 1."""

    def __init__(self):
        self.count = len(WIDTHS)
        self.places = [np.zeros((1, width), np.float32) for width in WIDTHS]
        self.given = []

    def ready(self, k):
        return True

    def take(self, k, seconds):
        return np.full((1, WIDTHS[k]), k + 1, np.float32)

    def place(self, k):
        return self.places[k]

    def give(self, k, residual, heads):
        self.given.append(k)


def reducer(scatter, gather, limit_seconds=20.0):
    sums = lambda rows, width: (rows[0, :width].copy(), np.zeros(0, np.float32))  # noqa: E731
    comms = (scatter, gather)
    return Mpi4pyReducer(comms, WIRES["float32"], sums, lambda: None, limit_seconds, np.inf)


@pytest.mark.parametrize("slow", [0, 1, 300])
def test_all_chunks_come_back_in_order_and_several_are_on_the_wire(slow):
    scatter, gather = OneNode(slow), OneNode(slow)
    reduce = reducer(scatter, gather)
    for _ in range(2):
        work = Chunks()
        reduce(work)
        assert work.given == list(range(work.count))
        for k, place in enumerate(work.places):
            np.testing.assert_array_equal(place, k + 1)
    if slow > 100:  # looks; the helpers are ready before
        assert scatter.most == WINDOW
        assert gather.most > 1


def test_what_goes_wrong_on_a_helper_is_raised_and_they_end_with_the_reducer():
    def fail(rows, width):
        raise RuntimeError("no sum")

    wire, comms = WIRES["float32"], (OneNode(), OneNode())
    before = threading.active_count()
    reduce = Mpi4pyReducer(comms, wire, fail, lambda: None, 20.0, np.inf)
    assert threading.active_count() == before + 2
    with pytest.raises(RuntimeError, match="no sum"):
        reduce(Chunks())
    reduce.close()
    assert threading.active_count() == before  # one that is left while Python exits may abort it


def test_a_helper_keeps_nothing_of_a_call():
    """Its results are JAX arrays, which must not be let go of while Python exits."""
    helper, array = _Helper(), np.zeros(1)
    kept = weakref.ref(array)
    helper.submit(array.sum).result(10)
    del array
    begin = time.monotonic()
    while kept() is not None:
        assert time.monotonic() - begin < 10
    helper.close()


def test_an_exchange_that_never_ends_is_an_error_and_no_other_begins():
    scatter, gather = OneNode(), OneNode()
    reduce = reducer(scatter, gather, limit_seconds=0.05)
    scatter.down = True
    with pytest.raises(NodeError, match=r"within 0\.05 s"):
        reduce(Chunks())
    scatter.down = False  # what was lost comes late
    begun = len(scatter.begun)
    with pytest.raises(NodeError, match="before this one did not end"):
        reduce(Chunks())
    assert len(scatter.begun) == begun
