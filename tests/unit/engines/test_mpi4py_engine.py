"""The engine mpi4py's pipeline of chunks, over a wire that the test drives."""

import time
import weakref
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from network import World

from jdaso._base.errors import NodeError
from jdaso._engines import mpi4py as engine
from jdaso._engines.mpi4py import WINDOW, Chunk, Mpi4pyReducer, _Helper
from jdaso._mpi.requests import MESSAGE_BYTES
from jdaso._payload.wire import WIRES

NODES, WIDTHS = 2, (8, 8, 8, 8, 8, 8, 3)


class Chunks:
    """An exchange whose chunk k is full of k + 1."""

    def __init__(self):
        self.count = len(WIDTHS)
        self.places = [np.zeros((NODES, width), np.float32) for width in WIDTHS]
        self.given = []

    def ready(self, k):
        return True

    def take(self, k, seconds):
        return np.full((NODES, WIDTHS[k]), k + 1, np.float32)

    def place(self, k):
        return self.places[k]

    def give(self, k, residual, heads):
        self.given.append(k)


def sum_rows(rows, total):
    rows[:, : total.size].sum(0, out=total)
    return np.zeros(0, np.float32)


def reducer(world, comm, limit_seconds=20.0, sums=sum_rows, bytes_per_second=np.inf):
    """A reducer on communicators whose names end in 0 (scattering) and 1 (gathering)."""
    both = [comm.Idup() for _ in range(2)]
    while not all(request.Test() for _, request in both):
        world.clock.sleep(0)
    comms = tuple(comm for comm, _ in both)
    return Mpi4pyReducer(
        comms, WIRES["float32"], sums, lambda: None, limit_seconds, bytes_per_second
    )


@pytest.mark.parametrize("seconds", [0.0, 0.01, 3.0])
def test_all_chunks_come_back_in_order_and_several_are_on_the_wire(seconds):
    world, begun = World(2), []
    for call in ("Ialltoall", "Iallgather"):
        world.delay(seconds, tag=call)
    for at in (2.9, 5.9):  # before the first have come, and before the rest
        world.do(lambda: begun.append(Counter(world.calls)), at=at)

    def program(rank, comm):
        reduce = reducer(world, comm)
        for _ in range(2):
            work = Chunks()
            reduce(work)
            assert work.given == list(range(work.count))
            assert not reduce._received  # the memory is free for steps
            for k, place in enumerate(work.places):
                np.testing.assert_array_equal(place, 2 * k + 2)

    assert [x.error for x in world.run(program)] == [None] * 2
    if seconds > 1:
        scattered = [calls[0, "Ialltoall", "world.0"] for calls in begun]
        gathered = [calls[0, "Iallgather", "world.1"] for calls in begun]
        assert scattered == [WINDOW, len(WIDTHS)] and gathered == [0, WINDOW]


def test_chunks_that_come_all_at_once_do_not_mix():
    """A node stands still until all that are on the wire have come."""
    world = World(2)
    world.delay(0.5, tag="Ialltoall")
    world.freeze(0, 2.0, after="Ialltoall", nth=WINDOW)

    def program(rank, comm):
        work = Chunks()
        reducer(world, comm)(work)
        for k, place in enumerate(work.places):
            np.testing.assert_array_equal(place, 2 * k + 2)

    assert [x.error for x in world.run(program)] == [None] * 2


def test_what_goes_wrong_on_a_helper_is_raised_and_they_end_with_the_reducer():
    def fail(rows, total):
        raise RuntimeError("no sum")

    def program(rank, comm):
        threads = world.clock.threads
        before = len(threads)
        reduce = reducer(world, comm, sums=fail)
        assert len(threads) == before + 2
        with pytest.raises(RuntimeError, match="no sum"):
            reduce(Chunks())
        reduce.close()
        assert len(threads) == before  # one that is left while Python exits may abort it

    world = World(1)
    assert world.run(program)[0].error is None


@pytest.mark.parametrize(
    ("nodes", "megabytes_per_second", "in_flight", "megabytes_left", "milliseconds"),
    [
        *[(4, 125, 1, 9, 1.3), (4, 125, 3, 9, 3.9), (4, 125, 9, 9, 5.0), (4, 12.5, 1, 9, 5.0)],
        *[(4, 390, 1, 9, 0.5), (4, 1250, 4, 9, 0.5), (4, 125, 4, 0.001, 0.5)],
        *[(4, 12.5, 4, 0.03, 2.4), (3, 125, 1, 9, 1.3), (2, 125, 4, 9, 0.5)],
    ],
)
def test_a_slow_link_is_polled_less_often_while_it_has_much_to_move(
    monkeypatch, nodes, megabytes_per_second, in_flight, megabytes_left, milliseconds
):
    """A poll moves the bytes of all exchanges, and takes a core's time from the steps."""

    def program(rank, comm):
        reduce = reducer(world, comm, bytes_per_second=1e6 * megabytes_per_second)
        request = SimpleNamespace(nbytes=1e6 * megabytes_left)
        reduce._scattered.append(Chunk(0, request, None, np.zeros(0)))
        return round(1e3 * reduce._most_pause, 1)

    monkeypatch.setattr(engine, "_polling", set(range(in_flight)))
    world = World(nodes)
    found = world.run(program)
    assert [x.result for x in found] == [milliseconds] * nodes


def test_messages_know_what_is_left_of_them():
    def program(rank, comm):
        sends, receives = (np.zeros((2, 250_000), np.uint8) for _ in range(2))
        messages = engine._exchange_rows(comm, sends, receives)
        assert (messages.left, messages.nbytes) == (6, 6 * MESSAGE_BYTES)
        while not messages.Test():
            world.clock.sleep(0.01)
        assert messages.nbytes == 0
        assert engine._exchange_rows(comm, sends[:, :100], receives[:, :100]).nbytes == 200

    world = World(2)
    assert [x.error for x in world.run(program)] == [None] * 2


def test_no_exchange_counts_as_polling_once_it_has_ended_or_failed():
    def fail(rows, total):
        assert len(engine._polling) == 1
        raise RuntimeError("no sum")

    def program(rank, comm):
        with pytest.raises(RuntimeError, match="no sum"):
            reducer(world, comm, sums=fail)(Chunks())
        assert not engine._polling

    world = World(1)
    assert world.run(program)[0].error is None


def test_a_helper_keeps_nothing_of_a_call():
    """A call returns JAX arrays, which must not be released while Python exits."""
    helper, array = _Helper(lambda: None), np.zeros(1)
    kept = weakref.ref(array)
    helper.submit(array.sum).result(10)
    del array
    begin = time.monotonic()
    while kept() is not None:
        assert time.monotonic() - begin < 10
    helper.close()


def test_an_exchange_that_never_ends_is_an_error_and_no_other_begins():
    """A late chunk must not count for the next exchange."""
    world = World(2)
    world.delay(30.0, tag="Ialltoall", nth=1)

    def program(rank, comm):
        reduce = reducer(world, comm, limit_seconds=5.0)
        with pytest.raises(NodeError, match=r"within 5 s"):
            reduce(Chunks())
        world.clock.sleep(30.0)
        begun = len(world.calls)
        with pytest.raises(NodeError, match="before this one did not end"):
            reduce(Chunks())
        assert len(world.calls) == begun

    assert [x.error for x in world.run(program)] == [None] * 2
