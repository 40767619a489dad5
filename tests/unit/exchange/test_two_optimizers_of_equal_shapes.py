"""Optimizers that meet in one channel: one that was thrown away, and two that are in use at once.

Number 1 is the first optimizer, number 2 the second; what is sent comes back.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._engines.base import InTurn
from jdaso._engines.channel import Channel
from jdaso._mpi.topology import Topology
from jdaso._nodes.control import Control
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import wire_of
from jdaso._payload.words import HEADER, STATUS
from jdaso.traces._timeline import Timeline


def echo(rows, out, headed):
    np.copyto(out, rows[:, : out.shape[1]])
    return np.zeros(0, np.float32), np.zeros((1, HEADER), np.int32)


@pytest.fixture
def channel():
    layout = layout_of([jnp.zeros(600), jnp.zeros(600)], 1, 2048)
    assert len(layout.segments) == 2
    control = Control(Topology(0, 1, "here"), timeout_seconds=20.0)
    channel = Channel(layout, wire_of("float32"), InTurn(echo, 20.0), control, Timeline())
    yield channel
    channel.close(5.0)


def start(channel, ticket, value, owner, segments=(0, 1)):
    for s in segments:
        array = np.full(600, value, np.float32)
        channel.start_segment(ticket, [array], np.zeros(HEADER, np.int32), s=s, owner=owner)


def fetched(channel, ticket, segments=(0, 1)):
    return [channel.fetch_segment(ticket, s)[0][0] for s in segments]


def refused(channel, ticket, owner):
    return (channel.wait(ticket, owner=owner)[:, STATUS] == 1).all()


@pytest.mark.parametrize("ticket", [1, 5])
def test_what_was_thrown_away_is_left_behind(channel, ticket, caplog):
    """As a first step that only compiles; whatever the step at which the new optimizer begins."""
    start(channel, 1, 10.0, owner=1)
    start(channel, ticket, 20.0, owner=2)
    assert not refused(channel, ticket, owner=2)
    assert fetched(channel, ticket) == [20.0, 20.0]
    assert "The exchange started at step 0 was completed but never merged" in caplog.text
    start(channel, ticket + 4, 21.0, owner=2)
    assert not refused(channel, ticket + 4, owner=2)


@pytest.mark.parametrize("ticket", [1, 5])
def test_whoever_comes_back_for_it_is_told_why_it_is_gone(channel, ticket):
    start(channel, 1, 10.0, owner=1)
    start(channel, ticket, 20.0, owner=2)
    assert channel.kept(1, owner=1) is None  # nor does a checkpoint find the other's numbers
    assert refused(channel, 1, owner=1)
    assert "another optimizer of equal shapes" in str(channel._control.refused)
    assert "name='second'" in str(channel._control.refused)
    assert not refused(channel, ticket, owner=2)
    assert fetched(channel, ticket) == [20.0, 20.0]
    start(channel, 1, 11.0, owner=1)  # it may begin again
    assert not refused(channel, 1, owner=1)
    assert fetched(channel, 1) == [11.0, 11.0]


def test_another_optimizer_goes_on_with_a_state(channel):
    """One made anew with another learning rate, say, takes the first one's exchange."""
    start(channel, 1, 10.0, owner=1)
    assert not refused(channel, 1, owner=2)
    assert fetched(channel, 1) == [10.0, 10.0]


def test_parts_of_two_optimizers_never_make_one_exchange(channel):
    start(channel, 1, 10.0, owner=1, segments=[0])
    start(channel, 1, 20.0, owner=2, segments=[1])
    assert refused(channel, 1, owner=1) and refused(channel, 1, owner=2)
    assert "Two exchanges of equal shapes" in str(channel._control.broken)


def test_an_exchange_that_is_being_fetched_is_not_taken_away(channel):
    start(channel, 1, 10.0, owner=1)
    assert not refused(channel, 1, owner=1)
    start(channel, 3, 20.0, owner=2)
    assert fetched(channel, 1) == [10.0, 10.0]
    assert not refused(channel, 3, owner=2)
    assert fetched(channel, 3) == [20.0, 20.0]
    start(channel, 5, 30.0, owner=1)
    start(channel, 7, 40.0, owner=2)
    assert len(channel.staging.places) == 2


def test_the_same_ticket_is_not_taken_while_it_is_being_fetched(channel):
    start(channel, 1, 10.0, owner=1)
    assert not refused(channel, 1, owner=1)
    start(channel, 1, 20.0, owner=2)
    assert refused(channel, 1, owner=2)
    assert fetched(channel, 1) == [10.0, 10.0]
