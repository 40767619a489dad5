"""Exchanges over a network that is slow, or loses: right sums, or the cause on all nodes."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from exchanging import FAST, GATHER, SCATTER, SLOW, exchange, finish, open_channel, start
from network import World
from played import LIMIT_SECONDS, PROMPTLY_SECONDS, play

from jdaso._nodes.compare import Comparison, complaint
from jdaso._payload.header import lift_below_zero
from jdaso._payload.words import BAD_LEAF, CHECKSUM, HEADER, STEP, WEIGHT


@pytest.mark.parametrize("rate", [FAST, SLOW], ids=["collectives", "messages"])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_sums_are_right_in_whatever_order_chunks_come(rate, seed, nodes):
    def program(node):
        channel = open_channel(node, rate=rate)
        found = []
        for ticket in (1, 2, 5):
            heads, sums = exchange(channel, ticket, ticket * 10.0**node.number)
            found.append((heads[:, STEP].tolist(), set(sums.tolist())))
        return found

    total = sum(10.0**k for k in range(nodes))
    for outcome in play(World(nodes, seed=seed), program):
        assert outcome.error is None
        assert outcome.result == [([t - 1] * nodes, {t * total}) for t in (1, 2, 5)]


@pytest.mark.parametrize("rate", [FAST, SLOW], ids=["collectives", "messages"])
def test_a_narrow_wire_needs_the_rounding_errors_of_each_chunk(rate):
    def program(node):
        channel = open_channel(node, wire="bfloat16", rate=rate)
        return [set(exchange(channel, t, t * 2.0**node.number)[1].tolist()) for t in (1, 2)]

    for outcome in play(World(2), program):
        assert outcome.error is None
        assert outcome.result == [{3.0}, {6.0}]


def test_one_slow_link_delays_all_and_changes_nothing():
    world = World(3)
    world.delay(0.7, source=2, dest=0)

    def program(node):
        channel = open_channel(node)
        node.come()
        begin = node.clock.now
        _, sums = exchange(channel, 1, 1.0 + node.number)
        return set(sums.tolist()), node.clock.now - begin

    for outcome in play(world, program):
        sums, seconds = outcome.result
        assert sums == {6.0} and 0.7 < seconds < 3


def test_while_an_exchange_is_under_way_the_nodes_may_talk():
    world = World(2, seed=4)

    def program(node):
        channel = open_channel(node)
        for ticket in range(1, 6):
            start(channel, ticket, 1.0)
            node.come("save a checkpoint", ticket=ticket)
            _, sums = finish(channel, ticket)
            assert set(sums.tolist()) == {2.0}

    assert [x.error for x in play(world, program)] == [None] * 2


@pytest.mark.parametrize("first", [1, 41], ids=["", "tickets begin again"])
@pytest.mark.parametrize("rate", [FAST, SLOW], ids=["collectives", "messages"])
def test_one_that_never_starts_its_exchange_is_named(rate, first):
    def program(node):
        channel = open_channel(node, rate=rate)
        exchange(channel, first, 1.0)
        if node.number == 2:
            node.world.clock.forever()
        exchange(channel, 5, 1.0)

    for outcome in play(World(3), program)[:2]:
        assert "waits for the exchange started at step 4" in outcome.text
        assert "step 4]" in outcome.text.partition(" This node")[0]
        assert "Not arrived: node 2 (host c) is running, at " in outcome.text
        assert "node 1 (" not in outcome.text and "node 0 (" not in outcome.text
        assert LIMIT_SECONDS < outcome.seconds < LIMIT_SECONDS + 2


@pytest.mark.parametrize("call", ["Ialltoall", "Iallgather"])
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("least_pause", [0.01, 0.02])
def test_one_that_dies_in_an_exchange_is_silent_for_all_or_none(call, side, least_pause):
    """Messages sent before a death still arrive: an exchange may end, and then the next does not.

    With the longer pause the dead node's heartbeat has already announced the next exchange.
    """
    world = World(3, least_pause=least_pause)
    world.kill(1, comm=SCATTER if call == "Ialltoall" else GATHER, nth=2, **{side: call})

    def program(node):
        channel = open_channel(node)
        for ticket in (1, 5, 9):
            exchange(channel, ticket, 1.0)

    outcomes = play(world, program)
    assert outcomes[1].fate == "died"
    steps = {x.text.partition("exchange started at ")[2][:6] for x in (outcomes[0], outcomes[2])}
    assert len(steps) == 1 and steps <= {"step 0", "step 4"}, outcomes
    for outcome in (outcomes[0], outcomes[2]):
        assert "node 1 (host b) has been silent" in outcome.text
        assert outcome.seconds < LIMIT_SECONDS + 2


def test_one_that_fails_in_mid_exchange_ends_it_at_once():
    def program(node):
        channel = open_channel(node)
        exchange(channel, 1, 1.0)
        start(channel, 5, 1.0) if node.number != 1 else None
        if node.number == 1:
            node.sleep(1.0)
            raise KeyError("boom")
        finish(channel, 5)

    outcomes = play(World(3), program)
    for k in (0, 2):
        assert "KeyError: 'boom'" in outcomes[k].text
        assert outcomes[k].seconds < outcomes[1].seconds + PROMPTLY_SECONDS


def test_a_chunk_that_is_lost_ends_in_the_limit_and_no_later_exchange_takes_its_place():
    world = World(2)
    world.lose(source=1, dest=0, comm=SCATTER, nth=2)

    def program(node):
        channel = open_channel(node, limit_seconds=3.0)
        texts = []
        for ticket in (1, 5):
            start(channel, ticket, 1.0)
            heads = channel.wait(ticket)
            texts.append(str(channel.flight(ticket, 0).error))
            channel._control._errors.clear()
            assert heads[0, -1] == 1, "failed"
        return texts

    (first, second), _ = (x.result for x in play(world, program))
    assert "An exchange did not end within 3 s" in first
    assert "The exchange before this one did not end" in second


def test_what_is_on_the_wire_as_all_close_is_completed(caplog):
    def program(node):
        channel = open_channel(node)
        start(channel, 1, 1.0)

    world = World(2, seed=1)
    assert [x.error for x in play(world, program)] == [None] * 2
    assert caplog.text.count("step 0 was completed but never merged") == 2
    assert world.aborted is None


def test_an_exchange_of_one_node_more_ends_as_the_others_leave():
    """Both nodes leave without an error; node 0 has started one more exchange."""

    def program(node):
        channel = open_channel(node)
        start(channel, 1, 1.0)
        finish(channel, 1)
        if node.number == 0:
            start(channel, 5, 1.0)

    first, second = play(World(2), program)
    assert second.error is None
    assert first.error is None or "node 1 ended the session" in first.text
    assert first.seconds < LIMIT_SECONDS + 1


HEADERS = {
    "step": (
        {STEP: 17},
        r"different numbers of updates \(node 0 at 4, node 1 at 17, node 2 at 4\)",
    ),
    "weight": ({WEIGHT: -2.0}, r"A weight must be finite and at least 0: node 1 gave -2 "),
    "lifted weight": (
        {WEIGHT: float(lift_below_zero(jnp.float32(-2))) + 32.0},
        r"A weight must be finite and at least 0: node 1 gave -2 ",
    ),
    "nan": ({WEIGHT: np.nan}, r"A weight must be finite and at least 0: node 1 gave nan "),
    "leaf": ({BAD_LEAF: 2}, r"not finite \(NaN or infinite\): node 1, leaf \['w'\]"),
}


@pytest.mark.parametrize("case", HEADERS)
@pytest.mark.parametrize("seed", [None, 1])
def test_all_read_the_same_from_the_words_of_a_header(case, seed):
    (about, text), names = HEADERS[case], {STEP: "step", WEIGHT: "weight", BAD_LEAF: "bad_leaf"}

    def program(node):
        channel = open_channel(node)
        words = {names[word]: value for word, value in about.items()} if node.number == 1 else {}
        heads, _ = exchange(channel, 5, 1.0, **words)
        return complaint(heads, ("['b']", "['w']"))

    said = {x.result for x in play(World(3, seed=seed), program)}
    assert len(said) == 1
    assert re.search(text, said.pop())


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("word", [3, 5])
def test_where_checksums_differ_all_find_the_leaf(seed, word):
    def program(node):
        channel, comparison = open_channel(node), Comparison(node.control, virtual=False)
        odd = node.number == 2
        prints = np.array([7, word if odd else 4, 9], np.int32)
        heads, _ = exchange(channel, 5, 1.0, checksum=int(prints.sum()))
        return comparison.complaint(heads, ("w",), ("step", "params['w']", "phase.delay"), prints)

    said = {x.result for x in play(World(4, seed=seed), program)}
    assert len(said) == 1
    text = said.pop()
    assert "should hold the same: node 2 in params['w']. Either a bit has changed in the" in text
    assert "or a function of the program gives different results on different nodes" in text


def test_local_devices_that_ask_for_the_difference_wait_for_the_limit_once():
    """Devices ask one after another; a missing node would cost each a limit of its own."""
    world, devices = World(2), 4

    def program(node):
        comparison = Comparison(node.control, virtual=False)
        if node.number == 1:
            world.clock.forever()
        heads, texts = np.zeros((2, HEADER), np.int32), []
        heads[:, CHECKSUM] = 1, 2
        for _ in range(devices):
            try:
                comparison.complaint(heads, ("w",), ("w",), np.zeros(1, np.int32))
            except Exception as error:
                texts.append(str(error))
        return texts, world.clock.now - world.clock.begin

    texts, seconds = play(world, program)[0].result
    assert len(texts) == devices and len(set(texts)) == 1 and "node 1 (host b)" in texts[0]
    assert seconds < LIMIT_SECONDS + 2
