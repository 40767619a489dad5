"""The bandwidth of links: the slowest counts, on all nodes alike, and it is measured once."""

import pytest
from network import World
from played import play

from jdaso._nodes.links import _TRIAL_BYTES, _TRIALS, Links


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_all_nodes_get_the_slowest_link(seconds):
    world = World(3)
    world.delay(seconds, source=1, dest=2, comm="world.1.0")

    def program(node):
        links = Links(node.control, node.control)
        return links.bytes_per_second(), links.bytes_per_second()

    results = [outcome.result for outcome in play(world, program)]
    assert len(set(results)) == 1
    assert results[0] == (pytest.approx(_TRIAL_BYTES / seconds, rel=0.1),) * 2
    sends = [rank for rank, call, comm in world.calls if (call, comm) == ("Isend", "world.1.0")]
    assert sorted(sends) == sorted([0, 1, 2] * _TRIALS)


def test_one_slow_trial_counts_for_nothing():
    world = World(2)
    world.delay(3.0, source=0, dest=1, comm="world.1.0", nth=1)

    def program(node):
        return Links(node.control, node.control).bytes_per_second()

    for outcome in play(world, program):
        assert outcome.result > 10 * _TRIAL_BYTES / 3.0
