"""All nodes stop at one step, over the network: with any node signalled, waiting or failing."""

import numpy as np
import pytest
from network import World
from played import LIMIT_SECONDS, play

STEPS = 400


def training(node, *, asked, pace=0.1, ahead=0, until=STEPS):
    """A loop whose steps take as long as `pace` gives; returns its last step."""
    node.come()
    node.world.clock.at(1.0 + ahead, lambda: None)
    pauses = np.random.default_rng(node.number).exponential(pace, until)
    for step in range(1, until + 1):
        node.sleep(pauses[step - 1] * (1 + node.number))
        if node.number in asked and step == asked[node.number]:
            node.detector.stopping.tell()
        if node.detector.stops_at(step):
            return step
    return None


def play_to_the_stop(world, asked, **settings):
    def program(node):
        if world.ulfm:
            node.control.survive()
        return training(node, asked=asked, **settings)

    return play(world, program)


@pytest.mark.parametrize("nodes", [2, 3, 5])
@pytest.mark.parametrize("asked", [{0: 3}, {1: 9}, {0: 5, 1: 5}, {1: 40}])
@pytest.mark.parametrize("seed", [None, 1])
def test_all_stop_at_a_step_that_none_has_passed(nodes, asked, seed):
    world = World(nodes, seed=seed, least_pause=0.02)
    outcomes = play_to_the_stop(world, asked)
    assert [x.error for x in outcomes] == [None] * nodes
    (step,) = {x.result for x in outcomes}
    assert step is not None and step >= min(asked.values())


def test_a_node_that_is_ahead_pauses_and_none_goes_past():
    """Node 1 is 30 steps behind, and its promise takes 2 s."""
    world = World(2)
    world.delay(2.0, source=1, dest=0)

    def program(node):
        node.come()
        step = 0
        for step in range(1, 200):
            node.sleep(0.05 if node.number == 0 else 0.2)
            if step == 20 and node.number == 0:
                node.detector.stopping.tell()
            if node.detector.stops_at(step):
                break
        return step, node.clock.now

    (first, then), (second, now) = (x.result for x in play(world, program))
    assert first == second and now > then
    assert first < 30, "it paused while it was asked, and for nothing else"


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("dead", [0, 1, 2])
def test_where_one_dies_meanwhile_the_others_stop_together(dead, seed):
    """The leader, the signalled node or another fails; at another message with each seed."""
    world = World(3, seed=seed, ulfm=True, least_pause=0.02)
    world.kill(dead, before="Isend", nth=4 * seed + 8, losing=bool(seed % 2))
    outcomes = play_to_the_stop(world, {1: 10})
    living = [x for x in outcomes if x.fate != "died"]
    assert [x.error for x in living] == [None] * len(living), outcomes
    assert len({x.result for x in living}) == 1, outcomes


@pytest.mark.parametrize("untold", [None, 1, 2])
def test_one_that_leads_and_dies_with_all_promises_is_replaced(untold):
    """Both others hold. Neither has received the stop, or one has and passes it on."""
    world = World(3, ulfm=True)
    world.delay(30.0, source=0, dest=untold, tag=12)  # STOP: the node fails before it arrives

    def program(node):
        node.control.survive()
        node.come()
        if node.number == 0:
            node.detector.stopping.tell()
        for step in range(1, 200):
            node.sleep(0.1)
            if node.detector.stops_at(step):
                return step
        return None

    world.kill(0, at=2.0, losing=True)
    outcomes = play(world, program)
    assert outcomes[1].result == outcomes[2].result is not None
    assert outcomes[1].error is outcomes[2].error is None


def test_one_that_leads_and_stands_still_ends_the_pause_of_the_others():
    world = World(3)
    world.freeze(0, at=1.5)  # it has asked all for promises

    def program(node):
        node.come()
        node.sleep(1.0)
        if node.number == 1:
            node.detector.stopping.tell()
        for step in range(1, 200):
            node.sleep(0.1)
            if step == 3 and node.number == 0:
                node.sleep(60)
            if node.detector.stops_at(step):
                return step
        return None

    world.lose(source=0, tag=12)
    outcomes = play(world, program)
    for outcome in outcomes[1:]:
        assert "agrees on where to stop" in outcome.text
        assert "node 0 (host a) has been silent" in outcome.text
        assert outcome.seconds < 1.5 + 2 * LIMIT_SECONDS


def test_one_that_fails_meanwhile_ends_the_pause_of_the_others_at_once():
    world = World(3)
    world.delay(60.0, source=0, dest=1, tag=12)  # STOP

    def program(node):
        node.come()
        if node.number == 1:
            node.detector.stopping.tell()
        for step in range(1, 100):
            node.sleep(0.1)
            if step == 30 and node.number == 2:
                raise KeyError("boom")
            if node.number != 2 and node.detector.stops_at(step):
                return step
        return None

    first, second, third = play(world, program)
    assert first.result is not None
    assert "agrees on where to stop" not in second.text
    assert "node 2 on host c failed: KeyError: 'boom'" in second.text
    assert second.seconds < third.seconds + 0.5
