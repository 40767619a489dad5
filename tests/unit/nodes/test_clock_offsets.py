"""Offsets between nodes' clocks, measured over a network that is uneven, slow, or stuck."""

import pytest
from network import World
from played import play

from jdaso.traces._clock_offset import _ROUNDS, measure


def offsets(world, ahead, limit_seconds=10.0, wait=0.0):
    """Returns each node's measurement; `ahead` holds the seconds that its own clock is ahead."""
    world.clock.offsets.update(ahead)

    def program(node):
        comm = node.control.duplicate().comm
        node.sleep(wait * node.number)
        clock = world.clock.time
        return measure(comm, node.control.check, limit_seconds, clock=clock)

    return [x.result for x in play(world, program)]


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_each_is_within_its_bound(seed):
    ahead = {0: 5.0, 1: -40.0, 2: 0.25}
    found = offsets(World(3, seed=seed, least_pause=1e-3), ahead, limit_seconds=60.0)
    assert found[0].seconds == 0
    for node in (1, 2):
        right = ahead[0] - ahead[node]
        assert abs(found[node].seconds - right) <= found[node].bound_seconds + 1e-9
        assert found[node].bound_seconds < (4e-3 if seed is None else 0.03)


def test_the_one_fast_round_counts_and_an_uneven_way_is_in_the_bound():
    """One way takes 50 ms, except one message; that way is uneven too, by as much as the bound."""
    world = World(2, least_pause=1e-4)
    comm = "world.1.0"
    for nth in range(1, _ROUNDS + 1):
        world.delay(2e-3 if nth == 7 else 0.05, source=1, dest=0, comm=comm, nth=nth)
    world.delay(0.0, source=0, dest=1, comm=comm)
    (_, found) = offsets(world, {1: 3.0})
    assert found.bound_seconds == pytest.approx(1e-3, rel=0.3)
    assert found.seconds == pytest.approx(-3.0 + 1e-3, abs=2e-4)


def test_a_node_that_comes_late_is_waited_for_within_the_limit():
    world = World(2, least_pause=1e-3)
    assert offsets(world, {}, limit_seconds=5.0, wait=2.0)[1] is not None
    world = World(2, least_pause=1e-3)
    first, second = offsets(world, {}, limit_seconds=1.0, wait=2.0)
    assert first is None and second is None


def test_node_0_that_answers_no_more_leaves_it_unknown():
    world = World(3, least_pause=1e-3)
    world.lose(source=0, dest=2, comm="world.1.0", nth=4)
    first, second, third = offsets(world, {}, limit_seconds=2.0)
    assert second is not None and third is None
    assert first is None, "it does not know whether node 2 has all answers"


def test_a_failure_ends_it_at_once():
    world = World(2, least_pause=1e-3)

    def program(node):
        comm = node.control.duplicate().comm
        if node.number == 1:
            raise KeyError("boom")
        return measure(comm, node.control.check, 60.0)

    first, second = play(world, program)
    assert "KeyError: 'boom'" in first.text and first.seconds < second.seconds + 0.5
