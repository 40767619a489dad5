"""Lanes of the engine mpi4jax, over one in memory whose sends may wait for their receivers."""

import itertools
import queue
import threading
import time
import weakref
from collections import defaultdict

import jax
import numpy as np
import pytest

from jdaso._base.errors import NodeError
from jdaso._engines import lanes
from jdaso._engines.lanes import WINDOW, LanesReducer, _Lane
from jdaso._payload.wire import WIRES

NODES, WIDTHS = 3, (80, 80, 80, 80, 80, 80, 31)
PIECE = 100  # bytes: several messages a row, the last one shorter
LIMIT = 20.0


class World:
    """Messages between nodes in memory; `hold` makes each send wait until it is received."""

    def __init__(self, hold):
        self.hold, self.sent, self.let_go = hold, defaultdict(list), threading.Event()
        pairs = itertools.product(("scatter", "gather"), range(NODES), range(NODES))
        self.boxes, self.taken = {}, {}
        for key in pairs:
            self.boxes[key], self.taken[key] = queue.Queue(), threading.Semaphore(0)

    def comm(self, name, node):
        return Comm(self, name, node)


class Comm:
    def __init__(self, world, name, node):
        self.world, self.name, self.node = world, name, node

    def Get_rank(self):  # noqa: N802
        return self.node

    def Get_size(self):  # noqa: N802
        return NODES


class Mpi4jax:
    """The two calls that lanes use."""

    @staticmethod
    def send(x, dest, *, comm):
        world, key = comm.world, (comm.name, comm.node, dest)

        def call(x):
            x = np.array(x).reshape(-1)
            world.sent[comm.name, comm.node].append((dest, x.size))
            world.boxes[key].put(x)
            wait = lambda: world.taken[key].acquire(timeout=LIMIT)  # noqa: E731
            assert not world.hold or wait(), "nobody receives"

        jax.experimental.io_callback(call, None, x, ordered=True)

    @staticmethod
    def recv(like, source, *, comm):
        world, key = comm.world, (comm.name, source, comm.node)

        def call():
            begin = time.monotonic()
            while time.monotonic() - begin < LIMIT and not world.let_go.is_set():
                try:
                    x = world.boxes[key].get(timeout=0.01)
                except queue.Empty:
                    continue
                world.taken[key].release()
                assert x.size == like.size, "a message meets another one's receive"
                return x
            return np.zeros(like.shape, like.dtype)

        return jax.experimental.io_callback(
            call, jax.ShapeDtypeStruct(like.shape, like.dtype), ordered=True
        )


class Chunks:
    """An exchange; row p of node n's chunk k is full of 100 n + 10 p + k."""

    def __init__(self, node, ready=lambda k: True):
        self.node, self.ready, self.count = node, ready, len(WIDTHS)
        self.places = [np.zeros((NODES, width), np.float32) for width in WIDTHS]
        self.given, self.heads = [], None

    def take(self, k, seconds):
        header = WIRES["float32"].header_width if k == self.count - 1 else 0
        rows = np.empty((NODES, WIDTHS[k] + header), np.float32)
        rows[:] = 100 * self.node + 10 * np.arange(NODES)[:, None] + k
        if header:
            rows[:, -header:].view(np.int32)[:] = self.node
        return rows

    def place(self, k):
        return self.places[k]

    def give(self, k, residual, heads):
        self.given.append(k)
        self.heads = heads

    def check(self):
        """The sums of all chunks, and the last one's headers."""
        assert self.given == list(range(self.count))
        for k, place in enumerate(self.places):
            total = 100 * sum(range(NODES)) + NODES * (10 * np.arange(NODES)[:, None] + k)
            np.testing.assert_array_equal(place, np.broadcast_to(total, place.shape))
        np.testing.assert_array_equal(self.heads[:, 0], range(NODES))


@pytest.fixture(autouse=True)
def in_memory(monkeypatch):
    monkeypatch.setattr(lanes, "import_mpi4jax", lambda: Mpi4jax)
    monkeypatch.setattr(lanes, "MESSAGE_BYTES", PIECE)


def sum_rows(rows, total):
    rows[:, : total.size].sum(0, out=total)
    return np.zeros(0, np.float32)


def reducer(world, node, *, sums=sum_rows, check=lambda: None, limit_seconds=LIMIT):
    comms = world.comm("scatter", node), world.comm("gather", node)
    return LanesReducer(comms, WIRES["float32"], sums, check, limit_seconds)


def lane_threads():
    return [x for x in threading.enumerate() if x.name.startswith(("jdaso-sca", "jdaso-gat"))]


def on_all_nodes(program):
    """Runs `program(node)` of all nodes side by side; returns their errors."""
    errors = [None] * NODES

    def run(node):
        try:
            program(node)
        except Exception as error:
            errors[node] = error

    threads = [threading.Thread(target=run, args=(node,)) for node in range(NODES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT)
        assert not thread.is_alive(), "a node hangs"
    return errors


@pytest.mark.parametrize("hold", [True, False], ids=["sends wait", "sends do not wait"])
def test_all_chunks_come_back_in_order_and_the_lanes_end(hold):
    world = World(hold)

    def program(node):
        reduce = reducer(world, node)
        for _ in range(2):
            work = Chunks(node)
            reduce(work)
            work.check()
        reduce.close()

    assert on_all_nodes(program) == [None] * NODES
    assert not lane_threads()  # one that is left while Python exits may abort it
    for node in range(NODES):  # the order that all nodes share
        around = [(node + d) % NODES for d in range(1, NODES)]
        heads = WIRES["float32"].header_width
        for pair, widths in (("scatter", [*WIDTHS[:-1], WIDTHS[-1] + heads]), ("gather", WIDTHS)):
            pieces = [min(PIECE, 4 * w - at) for w in widths for at in range(0, 4 * w, PIECE)]
            expected = [(to, size) for size in pieces for to in around]
            assert world.sent[pair, node] == 2 * expected


def test_a_chunk_is_taken_once_it_is_there_and_the_others_begin_without():
    """Node 0 hands nothing over before node 1 has sent some of its own chunks."""
    world, waited = World(hold=True), []

    class Late(Chunks):
        def take(self, k, seconds):
            assert self.ready(k), "taken before it was there"
            return super().take(k, seconds)

    def program(node):
        def ready(k):
            there = node > 0 or len(world.sent["scatter", 1]) > 0
            if not there:
                waited.append(k)
            return there

        reduce, work = reducer(world, node), Late(node, ready)
        if node:  # node 0 looks first
            begin = time.monotonic()
            while not waited and time.monotonic() - begin < LIMIT:
                time.sleep(0.001)
        reduce(work)
        work.check()
        assert not reduce._received  # the memory is free for steps
        reduce.close()

    assert on_all_nodes(program) == [None] * NODES
    assert set(waited) == {0}


def test_no_more_chunks_are_taken_than_there_are_buffers():
    world, taken = World(hold=False), []

    class Counted(Chunks):
        def take(self, k, seconds):
            taken.append(k)
            return super().take(k, seconds)

    reduce = reducer(world, 0, limit_seconds=0.3)
    with pytest.raises(NodeError, match=r"within 0.3 s"):
        reduce(Counted(0))
    assert taken == list(range(WINDOW))
    assert len(reduce._received) == WINDOW
    world.let_go.set()
    reduce.close()
    assert not lane_threads()


def test_an_error_in_a_lane_is_raised_and_no_other_exchange_begins(monkeypatch):
    def refuse(*_):
        raise RuntimeError("no lane")

    world = World(hold=False)
    reduce = reducer(world, 0)
    monkeypatch.setattr(reduce._scatter._peers, "receive", refuse)
    with pytest.raises(RuntimeError, match="no lane"):
        reduce(Chunks(0))
    with pytest.raises(NodeError, match="before this one did not end"):
        reduce(Chunks(0))
    world.let_go.set()
    reduce.close()
    assert not lane_threads()


def test_a_sum_that_fails_is_raised():
    def fail(rows, total):
        raise RuntimeError("no sum")

    world, raised = World(hold=False), []

    def program(node):
        reduce = reducer(world, node, sums=fail)
        with pytest.raises(RuntimeError, match="no sum"):
            reduce(Chunks(node))
        reduce.close()
        raised.append(node)

    assert on_all_nodes(program) == [None] * NODES
    assert len(raised) == NODES


def test_a_failure_of_another_node_ends_the_wait_and_close_has_a_limit(monkeypatch):
    monkeypatch.setattr(lanes, "_LEAVE_SECONDS", 0.05)

    def check():
        raise NodeError("node 1 failed")

    world = World(hold=False)
    reduce = reducer(world, 0, check=check)
    with pytest.raises(NodeError, match="node 1 failed"):
        reduce(Chunks(0))
    begin = time.monotonic()
    reduce.close()  # while lanes still wait for node 1
    assert time.monotonic() - begin < LIMIT / 4
    assert lane_threads()
    world.let_go.set()
    monkeypatch.setattr(lanes, "_LEAVE_SECONDS", LIMIT)
    reduce.close()
    assert not lane_threads()


def test_a_lane_keeps_nothing_of_a_call():
    """A call returns JAX arrays, which must not be released while Python exits."""
    ends, array = queue.SimpleQueue(), np.zeros(1)
    lane, kept = _Lane("scatter", ends.put), weakref.ref(array)
    lane.submit("sum", lambda array=array: array.sum())
    assert ends.get(timeout=LIMIT) == "sum"
    del array
    begin = time.monotonic()
    while kept() is not None:
        assert time.monotonic() - begin < LIMIT
    lane.end()
    lane.join(LIMIT)
    assert not lane_threads()
