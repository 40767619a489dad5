"""A channel whose transport fails, without MPI."""

import gc
import threading
import time
import weakref
from functools import partial
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._base.errors import NodeError
from jdaso._engines.base import InTurn, heads_of
from jdaso._engines.channel import Channel
from jdaso._engines.pace import Pace
from jdaso._engines.sums import Sums
from jdaso._jax.ffi import on_device
from jdaso._jax.ffi.on_device import OnDevice
from jdaso._mpi.topology import Topology
from jdaso._nodes.control import Control
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import wire_of
from jdaso._payload.words import BAD_LEAF, CHECKSUM, FAILED, HEADER, STATUS, STEP
from jdaso.traces._timeline import Timeline


class Link:
    """One node's numbers come back, while it is up."""

    up = True

    def __call__(self, rows, out, headed):
        if not self.up:
            raise RuntimeError("the link is down")
        np.copyto(out, rows[:, : out.shape[1]])
        return np.zeros(0, np.float32), np.ones((1, HEADER), np.int32)


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def channel(link):
    layout = layout_of([jnp.zeros(2000)], 1, 2048)
    assert len(layout.widths) > 2
    control = Control(Topology(0, 1, "here"), timeout_seconds=120.0)
    channel = Channel(layout, wire_of("float32"), InTurn(link, 120.0), control, Timeline(), Pace())
    yield channel
    channel.close(5.0)


MADE = {}  # the numbers of the last exchange with each ticket


class Numbers:
    """Chunks of equal numbers; each is copied after the `wait` of the one before."""

    nbytes = 8000

    def __init__(self, channel, value, wait=lambda k: None):
        self.value, self.wait, self.count = value, wait, len(channel.layout.widths)
        self.result = None

    def write(self):
        for k in range(self.count):
            yield k
            self.wait(k)

    def encode(self, k, room):
        rows = room()
        rows[:, : rows.shape[1] - (HEADER if k == self.count - 1 else 0)] = self.value
        return rows, 7

    def finish(self, flight):
        self.result = np.array(flight.place.whole)


def start(channel, ticket, *, blocking=True, **about):
    numbers, head = Numbers(channel, ticket), np.zeros(HEADER, np.int32)
    MADE[ticket] = numbers
    about = {"blocking": blocking, **about}
    assert channel.start(ticket, head, lambda flight: numbers, **about) == ticket
    return numbers


def test_a_start_after_an_exchange_that_failed_unseen_says_why(channel, link):
    """All chunks of the second exchange are refused at once, with the first one's error."""
    link.up = False
    start(channel, 1)
    begin = time.monotonic()
    start(channel, 5)
    assert (channel.wait(5)[:, STATUS] == 1).all()
    assert time.monotonic() - begin < 2
    assert "the link is down" in str(channel._control.broken)

    link.up = True  # the one after that works again
    start(channel, 9)
    assert (channel.wait(9) == 1).all()
    assert (MADE[9].result == 9).all()


def test_the_first_chunk_of_a_large_leaf_travels_while_the_rest_is_copied(channel, link):
    """The copy waits here until the link has been used."""
    used = threading.Event()
    reduce = type(link).__call__

    def call(*arguments):
        used.set()
        return reduce(*arguments)

    numbers = Numbers(channel, 5.0, wait=lambda k: used.wait(10) or pytest.fail("not sent"))
    with mock.patch.object(Link, "__call__", call):
        channel.start(1, np.zeros(HEADER, np.int32), lambda flight: numbers)
        assert (channel.wait(1) == 1).all()
    assert (numbers.result == 5.0).all()  # made before the wait is over


def test_the_header_has_the_first_bad_leaf_and_the_checksum(channel, link):
    """The header carries the error of a start, so that all nodes raise."""
    seen = []

    def call(self, rows, out, headed):
        np.copyto(out, rows[:, : out.shape[1]])
        if headed:
            seen.append(np.array(rows[0, out.shape[1] :]).view(np.int32))
        return np.zeros(0, np.float32), np.ones((1, HEADER), np.int32)

    def refused(flight):
        flight.error = NodeError("a version that is gone")
        return Numbers(channel, 1.0)

    with mock.patch.object(Link, "__call__", call):
        head = np.full(HEADER, 3, np.int32)
        head[BAD_LEAF] = 0
        channel.start(1, head, lambda flight: Numbers(channel, np.nan))
        channel.wait(1)
        channel.note_merged(1)
        channel.start(5, head, refused)
        assert (channel.wait(5)[:, STATUS] == 1).all()
        assert channel.flight(5, 0).done.wait(10)
    chunks = len(channel.layout.widths)
    assert [x[BAD_LEAF] for x in seen] == [1, 0]
    assert seen[0][CHECKSUM] == 3 + 7 * chunks
    assert seen[1][STATUS] == FAILED


def test_numbers_that_cannot_be_copied_are_an_error_at_once(channel):
    """The step's call raises; its wait comes all the same, and has the reason at once."""

    def refuse(k):
        raise TypeError("no such dtype")

    with pytest.raises(TypeError, match="no such dtype"):
        head = np.zeros(HEADER, np.int32)
        channel.start(1, head, lambda flight: Numbers(channel, 1.0, refuse))
    begin = time.monotonic()
    assert (channel.wait(1)[:, STATUS] == 1).all()
    assert time.monotonic() - begin < 2
    assert "no such dtype" in str(channel._control.broken)


def test_close_keeps_what_went_wrong_with_an_exchange_that_nobody_waited_for(channel, link):
    link.up = False
    start(channel, 1)
    assert channel.close(5.0)
    assert "the link is down" in str(channel._control.broken)


def test_close_says_where_an_exchange_was_never_merged(channel, caplog):
    start(channel, 1)
    assert channel.close(5.0) and channel._control.broken is None
    assert "started at step 0 was completed but never merged" in caplog.text


def test_a_start_that_waits_for_the_exchange_before_lets_the_rest_of_that_one_in(channel):
    """A waiting start must not keep out the calls that it waits for."""
    go, reached = threading.Event(), threading.Event()

    def wait(k):
        reached.set()
        assert go.wait(10)

    slow = Numbers(channel, 1.0, wait)
    head = np.zeros(HEADER, np.int32)
    behind = threading.Thread(
        target=channel.start, args=(1, head, lambda flight: slow), daemon=True
    )
    behind.start()
    assert reached.wait(10)
    ahead = threading.Thread(target=start, args=(channel, 5), daemon=True)
    ahead.start()
    ahead.join(0.2)
    assert ahead.is_alive()
    go.set()
    behind.join(10.0)
    assert not behind.is_alive(), "the wait holds the channel's lock"
    ahead.join(10.0)
    assert (channel.wait(5) == 1).all()
    assert (MADE[5].result == 5).all()


@pytest.mark.parametrize("owner", [0, 7])
def test_a_second_device_of_one_exchange_is_refused(channel, owner):
    """The second device must not pass for the same step, computed a second time."""
    start(channel, 1, owner=owner, device=0)
    start(channel, 1, owner=owner, device=3)
    assert (channel.wait(1)[:, STATUS] == 1).all()
    text = str(channel._control.broken)
    assert "Devices 0 and 3 of this node both start one exchange" in text
    assert "local_axis=('data', 'model')" in text


def test_a_step_done_again_is_no_second_device(channel):
    for _ in range(3):
        start(channel, 1, owner=7, device=2)
    assert (channel.wait(1) == 1).all() and channel._control.broken is None
    assert MADE[1].result[0] == 1


class NeverDone:
    """An MPI request that does not end."""

    def Test(self):
        return False


def test_what_mpi_may_yet_write_to_outlives_a_wait_in_vain():
    control = Control(Topology(0, 1, "here"), timeout_seconds=0.05)
    data, request = np.zeros(8), NeverDone()
    alive = weakref.ref(data), weakref.ref(request)
    with pytest.raises(NodeError, match="did not end within 0.05 s"):
        control.wait(request, "test", data)
    del control, data, request
    gc.collect()
    assert all(reference() is not None for reference in alive)


def work(seconds):
    """Keeps the processor busy."""
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass


def test_the_pace_has_what_a_late_exchange_took(channel):
    """The step worked to copy; then it waited; meanwhile the exchange was in flight."""
    numbers = Numbers(channel, 1.0, wait=lambda k: work(0.01))
    channel.start(1, np.zeros(HEADER, np.int32), lambda flight: numbers)
    channel.wait(1)
    _, _, in_flight, copying, working, _ = channel._pace.totals(1)
    assert working >= 0.01 * numbers.count
    assert in_flight > 0 and copying >= 0.9 * working
    start(channel, 2, blocking=True)
    channel.wait(2)
    later = channel._pace.totals(2)
    assert later.in_flight == in_flight and later.copying == copying, "a blocking mean is not late"


def test_a_wait_for_a_copy_from_a_gpu_is_work(channel, monkeypatch):
    """The sum holds up the step on any number of cores, as a copy by its thread does."""
    monkeypatch.setattr(on_device, "_copier", [lambda count, address: time.sleep(0.02)])
    given = np.ones(2, np.float32)
    pair = np.zeros(2, np.float32), OnDevice(given.shape, given.dtype, given.ctypes.data)
    numbers = Numbers(channel, 1.0, wait=lambda k: on_device.copy_out([pair]))
    channel.start(1, np.zeros(HEADER, np.int32), lambda flight: numbers)
    channel.wait(1)
    assert channel._pace.totals(1).working >= 0.019 * numbers.count


def test_the_pace_ends_with_an_exchange_that_failed(channel, link):
    link.up = False
    start(channel, 1, blocking=False)
    channel.wait(1)
    before = channel._pace.totals(1).in_flight
    time.sleep(0.02)
    assert channel._pace.totals(1).in_flight == before


def test_a_step_that_is_repeated_waits_for_the_first_and_copies_little(channel):
    """`optax.MultiSteps` repeats steps; a larger B would not spare this wait."""
    reduce, finish, waits = Link.__call__, channel._await, threading.Event()

    def call(*arguments):
        assert waits.wait(20.0)
        time.sleep(0.05)
        return reduce(*arguments)

    def await_(*arguments):
        waits.set()
        return finish(*arguments)

    with (
        mock.patch.object(Link, "__call__", call),
        mock.patch.object(channel, "_await", await_),
    ):
        for _ in range(2):
            start(channel, 1, blocking=False, owner=1)
        channel.wait(1, owner=1)
    pace = channel._pace.totals(1)
    assert pace.waiting > 0.1 and pace.working < 0.05


def test_a_start_waits_for_an_exchange_whose_wait_ended_early(channel):
    """The wait reports at once that a state is too old, and the run continues with another one."""
    held, sent, reduce = threading.Event(), [], Link.__call__

    def call(link, rows, out, headed):
        if headed:
            sent.append(int(heads_of(channel.wire, rows)[0, STEP]))
        assert held.wait(20.0)
        return reduce(link, rows, out, headed)

    def too_old(flight):
        flight.error = NodeError("too old")
        return Numbers(channel, 1.0)

    def head(step):
        words = np.zeros(HEADER, np.int32)
        words[STEP] = step
        return words

    with mock.patch.object(Link, "__call__", call):
        channel.start(1, head(0), too_old, owner=1)
        assert (channel.wait(1, owner=1)[:, STATUS] == FAILED).all() and not held.is_set()
        threading.Timer(0.1, held.set).start()
        channel.start(2, head(1), lambda flight: Numbers(channel, 2.0), owner=1)
        assert held.is_set()
        channel.wait(2, owner=1)
        assert channel.flight(2, 1).error is None
    assert sent == [0, 1]


def test_an_exchange_drops_what_it_has_sent_and_received(channel):
    made, staging = [], channel.staging
    for name in ("rows", "sums"):

        def counted(make):
            found = make()
            made.append(weakref.ref(found))
            return found

        setattr(staging, name, partial(counted, getattr(staging, name)))
    start(channel, 1)
    channel.wait(1)
    assert len(made) == 2 and [kept() for kept in made] == [None] * 2


def test_a_wait_that_failed_leaves_the_memory_of_sums_alone(channel, link):
    """A thread that is still inside MPI may send from the memory."""
    link.up, sums = False, Sums(channel, 0)
    size = sum(leaf.size for leaf in channel.layout.exchanged)
    begun = sums.start(1, [np.ones(size, np.float32)], np.zeros(HEADER, np.int32))
    heads, (total,), _ = sums.wait(1, begun)[0]
    assert (heads[:, STATUS] == FAILED).all() and not total.any()
    assert (begun.sums.whole[:size] == 1.0).all()


def test_nothing_is_started_once_a_wait_was_given_up(channel, link):
    """A thread may still send from the memory that the next exchange would overwrite."""
    error = channel._control.give_up(NodeError("timed out"))
    calls = []

    def begin(flight):
        calls.append(flight)
        return Numbers(channel, 1)

    with pytest.raises(NodeError, match="timed out") as raised:
        channel.start(1, np.zeros(HEADER, np.int32), begin)
    assert raised.value is error and not calls
