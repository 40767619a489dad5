"""Optimizers that meet in one channel: one that was thrown away, and two that are in use at once.

Number 1 is the first optimizer, number 2 the second; what is sent comes back.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._engines.base import InTurn
from jdaso._engines.channel import Channel
from jdaso._engines.pace import Pace
from jdaso._mpi.topology import Topology
from jdaso._nodes.compare import crossed
from jdaso._nodes.control import Control
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import wire_of
from jdaso._payload.words import GONE, HEADER, STATUS, WELL, bury, signed
from jdaso.traces._timeline import Timeline


def echo(rows, out, headed):
    np.copyto(out, rows[:, : out.shape[1]])
    return np.zeros(0, np.float32), np.zeros((1, HEADER), np.int32)


class Other:
    """A second node, which sends what this one does, of an optimizer of its own."""

    number = 1

    def __call__(self, rows, out, headed):
        np.copyto(out, rows[:, : out.shape[1]])
        heads = np.zeros((2, HEADER), np.int32)
        if headed:
            heads[0] = np.ascontiguousarray(rows[0, out.shape[1] :]).view(np.int32)
            heads[1] = [*heads[0, :STATUS], signed(self.number)]
        return np.zeros(0, np.float32), heads


@pytest.fixture
def channel():
    yield from channel_with(echo)


@pytest.fixture
def other():
    return Other()


@pytest.fixture
def meeting(other):
    yield from channel_with(other)


def channel_with(reduce):
    layout = layout_of([jnp.zeros(600), jnp.zeros(600)], 1, 2048)
    control = Control(Topology(0, 1, "here"), timeout_seconds=120.0)
    channel = Channel(
        layout, wire_of("float32"), InTurn(reduce, 120.0), control, Timeline(), Pace()
    )
    yield channel
    channel.close(5.0)


MADE = {}  # the numbers of the last exchange with each ticket


class Numbers:
    """Numbers of a late exchange, all equal; what comes back is kept."""

    nbytes = 4800

    def __init__(self, channel, value):
        self.chunks, self.value, self.result = len(channel.layout.widths), value, None

    def write(self):
        yield from range(self.chunks)

    def encode(self, k, room):
        rows = room()
        rows[:, : rows.shape[1] - (HEADER if k == self.chunks - 1 else 0)] = self.value
        return rows, 0

    def finish(self, job):
        self.result = float(job.place.whole[0])


def start(channel, ticket, value, owner):
    numbers = MADE[ticket] = Numbers(channel, value)
    channel.start(ticket, np.zeros(HEADER, np.int32), lambda job: numbers, owner=owner)


def fetched(channel, ticket):
    channel.note_merged(ticket)
    return MADE[ticket].result


def refused(channel, ticket, owner):
    return (channel.wait(ticket, owner=owner)[:, STATUS] == 1).all()


@pytest.mark.parametrize("ticket", [1, 5])
def test_what_was_thrown_away_is_left_behind(channel, ticket, caplog):
    """A first step may only compile; the new optimizer may begin at any step."""
    start(channel, 1, 10.0, owner=1)
    start(channel, ticket, 20.0, owner=2)
    assert not refused(channel, ticket, owner=2)
    assert fetched(channel, ticket) == 20.0
    assert "The exchange started at step 0 was completed but never merged" in caplog.text
    start(channel, ticket + 4, 21.0, owner=2)
    assert not refused(channel, ticket + 4, owner=2)


@pytest.mark.parametrize("ticket", [1, 5])
def test_a_later_wait_for_it_gets_the_reason(channel, ticket):
    start(channel, 1, 10.0, owner=1)
    start(channel, ticket, 20.0, owner=2)
    assert channel.flight(1, owner=1) is None  # nor does a checkpoint find the other's numbers
    assert refused(channel, 1, owner=1)
    assert "another optimizer of equal shapes" in str(channel._control.refused)
    assert "name='second'" in str(channel._control.refused)
    assert not refused(channel, ticket, owner=2)
    assert fetched(channel, ticket) == 20.0
    start(channel, 1, 11.0, owner=1)  # it may begin again
    assert not refused(channel, 1, owner=1)
    assert fetched(channel, 1) == 11.0


def test_another_optimizer_goes_on_with_a_state(channel):
    """One made anew with another learning rate, say, takes the first one's exchange."""
    start(channel, 1, 10.0, owner=1)
    assert not refused(channel, 1, owner=2)
    assert fetched(channel, 1) == 10.0


def test_two_optimizers_of_one_step_are_refused(channel):
    """The second takes the ticket that the first has waited for, or not yet completed."""
    start(channel, 1, 10.0, owner=1)
    assert not refused(channel, 1, owner=1)
    start(channel, 1, 20.0, owner=2)
    assert refused(channel, 1, owner=1) and refused(channel, 1, owner=2)
    assert "Two exchanges of equal shapes" in str(channel._control.broken)


@pytest.mark.parametrize("blocking", [False, True])
def test_optimizers_that_meet_crosswise_are_an_error_on_both_nodes(meeting, other, blocking):
    """One node updates the first, then the second, and another one the second first."""

    def exchange(ticket, owner):
        numbers, head = Numbers(meeting, 10.0), np.zeros(HEADER, np.int32)
        meeting.start(ticket, head, lambda job: numbers, owner=owner, blocking=blocking)

    for ticket, number in ((1, 1), (3, 2)):
        other.number = number
        exchange(ticket, number)
        heads = meeting.wait(ticket, owner=number)
        assert (heads[:, STATUS] == WELL).all()  # nor is the number in what a checkpoint keeps
        meeting.note_merged(ticket)
    exchange(5, 1)
    assert refused(meeting, 5, owner=1)
    assert meeting._control.broken is None  # the nodes are in step, and the run can go on
    said = str(meeting._control.refused)
    assert "node 0 with number 1, node 1 with number 2" in said and "name='second'" in said


def test_nodes_that_have_died_meet_with_nobody():
    heads = np.zeros((3, HEADER), np.int32)
    heads[:, STATUS] = [signed(2), signed(2), WELL]
    assert "node 2 with number 0" in str(crossed(heads))
    heads = bury(heads, [0, 1])
    assert heads[2, STATUS] == GONE and crossed(heads) is None
