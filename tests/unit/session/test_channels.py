"""Channels of a session: opened once by all nodes, and closed with short waits after a failure."""

import jax.numpy as jnp
import pytest
from network import World
from played import play

from jdaso._engines.channel import Channel
from jdaso._nodes import links
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import wire_of
from jdaso._session.channels import Channels
from jdaso.traces._timeline import Timeline

SMALL, LARGE = (layout_of([jnp.zeros(size)], 2, 2048) for size in (100, 2000))
FLOAT32, INT8 = map(wire_of, ("float32", "int8"))


@pytest.fixture(autouse=True)
def short_trials(monkeypatch):
    monkeypatch.setattr(links, "_TRIAL_BYTES", 2**10)


def channels_of(node):
    channels = Channels("mpi4py", node.control, node.control, None, Timeline())
    node.closing.append(lambda failed: channels.close(failed=failed, after_error=failed))
    return channels


def test_each_is_opened_once_and_has_a_number():
    world = World(2)

    def program(node):
        channels = channels_of(node)
        kinds = (SMALL, FLOAT32, "a"), (LARGE, FLOAT32, "a"), (SMALL, INT8, "a"), (SMALL, INT8, "b")
        opened = [channels.of(*kind) for kind in kinds]
        assert [channels.of(*kind) for kind in kinds] == opened
        return [channel._flights._number for channel in opened]

    for outcome in play(world, program):
        assert outcome.error is None and outcome.result == [1, 2, 3, 4]
    measured = [rank for rank, call, _ in world.calls if call == "Irecv"]
    assert len(measured) == 2 * links._TRIALS, "the links are measured once, not by each channel"


def test_nodes_that_open_different_ones_get_an_error():
    def program(node):
        channels_of(node).of(SMALL, INT8 if node.number else FLOAT32, "daso")

    for outcome in play(World(2), program):
        assert "disagree on optimizer: node 1 has daso on int8" in outcome.text


@pytest.mark.parametrize(("failed", "broken"), [(False, False), (True, False), (False, True)])
def test_after_a_failure_they_wait_no_longer_than_a_second(failed, broken, monkeypatch):
    limits = [], []

    def close(self, limit, *, after_error):
        mine = limits[self._control.topology.node]
        mine.append(limit)
        if broken:
            self._control.note_broken(KeyError("boom"))
        return len(mine) > 1

    def program(node):
        channels = Channels("mpi4py", node.control, node.control, None, Timeline())
        for name in "abc":
            channels.of(SMALL, FLOAT32, name)
        return channels.close(failed=failed, after_error=False)

    monkeypatch.setattr(Channel, "close", close)
    outcomes = play(World(2), program)
    assert [x.result for x in outcomes] == [False, False], "the first one is stuck"
    for mine in limits:
        assert mine == ([1.0] * 3 if failed else [None, *[1.0 if broken else None] * 2])
