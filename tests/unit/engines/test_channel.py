"""A channel whose transport fails, without MPI."""

import gc
import threading
import time
import weakref
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._engines.base import InTurn
from jdaso._engines.channel import Channel
from jdaso._errors import NodeError
from jdaso._mpi.topology import Topology
from jdaso._nodes.control import Control
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import wire_of
from jdaso._payload.words import HEADER, STATUS
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
    control = Control(Topology(0, 1, "here"), timeout_seconds=20.0)
    channel = Channel(layout, wire_of("float32"), InTurn(link, 20.0), control, Timeline())
    yield channel
    channel.close(5.0)


def start(channel, ticket, chunks=None, **about):
    widths = list(enumerate(channel.layout.widths))
    for k, width in widths[slice(*chunks) if chunks else slice(None)]:
        rows = np.full((1, width), ticket, np.float32)
        head = np.zeros(HEADER, np.int32)
        assert channel.start_chunk(ticket, [rows], head, k=k, **about) == ticket


def test_a_start_after_an_exchange_that_failed_unseen_says_why(channel, link):
    """All chunks of it are refused at once, and the error is the first one's."""
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
    rows, _ = channel.fetch(9, 0)
    np.testing.assert_array_equal(rows, np.full((1, channel.layout.widths[0]), 9))


def test_the_first_chunk_of_a_large_leaf_travels_while_the_rest_is_copied(channel, link):
    """Here the copy waits until the link has been used."""
    used = threading.Event()
    reduce, write = type(link).__call__, channel.staging.write_segment

    def call(*arguments):
        used.set()
        return reduce(*arguments)

    def slowly(s, arrays):
        for k in write(s, arrays):
            yield k
            assert used.wait(10)

    channel.staging.write_segment = slowly
    with mock.patch.object(Link, "__call__", call):
        leaf = np.arange(2000, dtype=np.float32)
        channel.start_segment(1, [leaf], np.zeros(HEADER, np.int32), s=0)
        assert (channel.wait(1) == 1).all()
    (vector,) = channel.fetch_segment(1, 0)
    np.testing.assert_array_equal(vector, leaf)


def test_a_chunk_of_two_segments_is_not_sent_before_both_are_there(link):
    layout = layout_of([jnp.zeros(600), jnp.zeros(300)], 1, 2048)
    first, second = layout.segments
    control = Control(Topology(0, 1, "here"), timeout_seconds=20.0)
    channel = Channel(layout, wire_of("float32"), InTurn(link, 20.0), control, Timeline())
    assert set(channel.staging.chunks_of(first)) & set(channel.staging.chunks_of(second)) == {1}
    head, leaves = np.zeros(HEADER, np.int32), [np.ones(600, np.float32), np.ones(300, np.float32)]
    channel.start_segment(1, [leaves[0]], head, s=0)
    job = channel._jobs[1]
    assert job.ready[0].is_set() and not job.ready[1].is_set()
    channel.start_segment(1, [leaves[1]], head, s=1)
    assert job.ready[1].is_set() and (channel.wait(1) == 1).all()
    for s, leaf in enumerate(leaves):
        np.testing.assert_array_equal(channel.fetch_segment(1, s)[0], leaf)
    assert channel.close(5.0)


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
    """Two devices, one of which is ahead: its wait must not keep out what it waits for."""
    start(channel, 1, (0, 1))  # device 0; the rest is device 1's
    ahead = threading.Thread(target=start, args=(channel, 5), daemon=True)
    ahead.start()
    ahead.join(0.2)
    behind = threading.Thread(target=start, args=(channel, 1, (1, None)), daemon=True)
    behind.start()
    behind.join(10.0)
    assert not behind.is_alive(), "the wait holds the channel's lock"
    ahead.join(10.0)
    assert (channel.wait(5) == 1).all()
    rows, _ = channel.fetch(5, 0)
    np.testing.assert_array_equal(rows, np.full((1, channel.layout.widths[0]), 5))


def test_all_devices_may_wait_for_the_exchange_before(channel):
    """The first of them begins the next, the others join it."""
    start(channel, 1)
    count = len(channel.layout.widths)
    devices = [
        threading.Thread(target=start, args=(channel, 5, (k, k + 1)), kwargs={"device": k})
        for k in range(count)
    ]
    for device in devices:
        device.start()
    for device in devices:
        device.join(10.0)
    assert (channel.wait(5) == 1).all()
    for k, width in enumerate(channel.layout.widths):
        np.testing.assert_array_equal(channel.fetch(5, k)[0], np.full((1, width), 5))


@pytest.mark.parametrize("owner", [0, 7])
def test_a_second_device_of_one_exchange_is_refused(channel, owner):
    """It must not pass for the same step, computed a second time."""
    start(channel, 1, owner=owner, device=0)
    start(channel, 1, (0, 1), owner=owner, device=3)
    assert (channel.wait(1)[:, STATUS] == 1).all()
    text = str(channel._control.broken)
    assert "Devices 0 and 3 of this node both hand over part 0" in text
    assert "local_axis=('data', 'model')" in text


def test_a_step_done_again_is_no_second_device(channel):
    for _ in range(3):
        start(channel, 1, owner=7, device=2)
    assert (channel.wait(1) == 1).all() and channel._control.broken is None
    assert channel.fetch(1, 0)[0][0, 0] == 1


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
