"""Nodes that fail, under ULFM, at each of their calls: the others continue and agree."""

import functools

import numpy as np
import pytest
from exchanging import exchange, open_channel
from network import World
from played import LIMIT_SECONDS, play

from jdaso._payload.words import GONE, STATUS, WEIGHT


def talk(node):
    """Makes the hosts' calls; returns the results on this node."""
    node.come()
    node.control.survive()
    found = []
    for k in range(3):
        found.append(tuple(node.control.everyone(f"say {k}", f"{node.number}:{k}")))
        found.append(node.control.duplicate().living)
        found.append(int(node.control.broadcast(np.array([node.number]), root=1)[0]))
    return found, node.control.living


def train(node, wire="float32"):
    """Exchanges; returns the sums, the headers' words, and the nodes left after each."""
    node.come()
    node.control.survive()
    channel, found = open_channel(node, wire), []
    for ticket in (1, 2, 3, 4):
        heads, sums = exchange(channel, ticket, 10.0**node.number)
        gone = [k for k in range(len(heads)) if heads[k, STATUS] == GONE]
        assert all(heads[k, WEIGHT] == 0 for k in gone)
        found.append((tuple(gone), tuple(sorted(set(sums.tolist())))))
    return found, node.control.living


@functools.cache
def calls_of(program, nodes, node):
    """Returns the calls of MPI that a node makes from the point where a failure is survived."""
    world = World(nodes, ulfm=True)
    play(world, program)
    mine = [call for rank, call, _ in world.calls if rank == node]
    begin = [k for k, call in enumerate(mine) if call == "Iagree"][0]
    return range(begin, len(mine))


def survive(world, program, dead):
    """Returns the survivors' result: all have the same, without an error and in time."""
    outcomes = play(world, program, limit_seconds=4 * LIMIT_SECONDS)
    for outcome in outcomes:
        assert outcome.fate == "died" or outcome.error is None, outcomes
    living = [k for k, outcome in enumerate(outcomes) if outcome.fate != "died"]
    assert set(range(world.size)) - set(living) <= dead
    assert all(outcomes[k].seconds < LIMIT_SECONDS for k in living), outcomes
    assert len({repr(outcomes[k].result) for k in living}) == 1, outcomes
    return living, outcomes[living[0]].result


def worlds(program, dead, every):
    """Worlds of three nodes, one of which fails at each of its calls, or at every n-th."""
    calls = calls_of(program, 3, dead)[dead % every :: every]
    for nth in calls:
        # Where messages take unequally long it may make fewer calls, and then it lives.
        world = World(3, ulfm=True, seed=None if nth % 3 == 0 else nth)
        world.kill(dead, before=None, nth=nth + 1, losing=nth % 2 == 0)
        yield world


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_whichever_call_a_node_dies_at_the_hosts_talk_on(dead):
    died = []
    for world in worlds(talk, dead, every=2):
        living, (found, known) = survive(world, talk, {dead})
        died.append(dead not in living)
        assert set(living) <= set(known)
        for said in found[::3]:  # a node's own words, or the first living one's in their place
            assert all(text.startswith(f"{k}:") for k, text in enumerate(said) if k in living)
    assert sum(died) > 0.8 * len(died) > 15


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_whichever_call_a_node_dies_at_all_sums_are_with_it_or_without(dead):
    whole, fewer = sum(10.0**k for k in range(3)), sum(10.0**k for k in range(3) if k != dead)
    died, seen = [], set()
    for world in worlds(train, dead, every=4):
        living, (found, _) = survive(world, train, {dead})
        died.append(dead not in living)
        for gone, sums in found:
            assert (gone, sums) in (((), (whole,)), ((dead,), (fewer,))), found
        order = [gone for gone, _ in found]
        assert order == sorted(order), "nobody comes back"
        seen.add(len(order) - order.count(()))
    assert sum(died) > 0.8 * len(died) > 10
    assert seen >= {1, 2, 3}, "it died before, in and after each exchange"


@pytest.mark.parametrize("seed", range(6))
def test_two_die_in_one_exchange(seed):
    """The second fails at the same moment, or while the others agree on the first."""
    world = World(4, ulfm=True, seed=seed)
    world.kill(1, before="Isend", comm="world.1.0", nth=9 + 5 * seed)
    world.kill(2, before=None if seed % 2 else "Iagree", nth=60 if seed % 2 else 7, losing=True)
    living, (found, known) = survive(world, train, {1, 2})
    for gone, sums in found:
        assert sums == (sum(10.0**k for k in range(4) if k not in gone),)
    assert set(living) <= set(known)


@pytest.mark.parametrize("phase", ["Revoke", "Shrink", "Iagree"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_another_dies_while_the_first_is_left_behind(phase, side):
    world = World(4, ulfm=True)
    world.kill(1, before="Isend", comm="world.1.0", nth=12)
    world.kill(3, nth=5 if phase == "Iagree" else 1, **{side: phase})
    living, (found, known) = survive(world, train, {1, 3})
    assert living == [0, 2] and known in ((0, 2), (0, 1, 2), (0, 2, 3), (0, 1, 2, 3))
    assert found[-1] == ((1, 3), (101.0,))


@pytest.mark.parametrize("late", [0, 2])
def test_all_agree_even_if_mpi_reports_a_failure_to_one_much_later(late):
    world = World(3, ulfm=True)
    world.notice(late, 2.0)
    world.kill(1, before="Isend", comm="world.1.0", nth=12)
    living, (found, _) = survive(world, train, {1})
    assert living == [0, 2] and found[-1] == ((1,), (101.0,))


def test_a_slow_word_that_it_is_over_reaches_one_that_still_waits():
    """Node 2 has all it waits for; node 0 has not, revokes, and waits for node 2 to agree."""
    world = World(3, ulfm=True)
    world.delay(1.0, source=0, dest=2, tag="Revoke")
    world.kill(1, after="Isend", comm="world.1.0", nth=14, losing=True)
    living, (found, _) = survive(world, train, {1})
    assert living == [0, 2] and found[-1] == ((1,), (101.0,))


def test_one_that_lacks_a_part_is_believed_before_mpi_knows_of_a_death():
    """Node 1 has all, agrees that all is well, and fails; its data for node 0 is lost.

    Node 0 detects that at once, and disagrees. MPI reports no failure until all have answered.
    """
    world = World(3, ulfm=True, least_pause=1e-4)
    world.notice(0, 0.0)
    world.notice(2, 1.0)
    world.delay(0.05, source=1, dest=0, tag="Iallgather")
    world.kill(1, after="Iagree", comm="world.1", nth=3, losing=True)
    living, (found, known) = survive(world, talk, {1})
    assert living == [0, 2] and known == (0, 2)
    assert all(said[2].startswith("2:") for said in found[::3])


def test_the_last_one_goes_on_alone():
    world = World(3, ulfm=True)
    world.kill(0, before="Isend", comm="world.1.0", nth=5)
    world.kill(2, before="Iagree", nth=6)
    living, (found, _) = survive(world, train, {0, 2})
    assert living == [1] and found[-1] == ((0, 2), (10.0,))


def test_narrow_wires_agree_bit_for_bit():
    world = World(3, ulfm=True, seed=3)
    world.kill(1, before="Isend", comm="world.1.0", nth=12)
    _, (found, _) = survive(world, functools.partial(train, wire="bfloat16"), {1})
    assert found[-1][0] == (1,)
    assert np.allclose(found[-1][1], 101.0, rtol=0.02)


def test_an_error_on_one_that_lives_still_ends_all():
    """An error that ends the run is not survived: the others do not go on without that node."""
    world = World(3, ulfm=True)
    world.kill(1, before="Isend", comm="world.1.0", nth=12)

    def program(node):
        train(node)
        if node.number == 2:
            raise KeyError("boom")
        node.come("finalize")

    outcomes = play(world, program)
    assert "node 2 on host c failed: KeyError: 'boom'" in outcomes[0].text
    assert outcomes[0].seconds < outcomes[2].seconds + 0.5


@pytest.mark.parametrize("least_pause", [0.01, 0.02])
def test_one_that_stands_still_is_no_death(least_pause):
    world = World(3, ulfm=True, least_pause=least_pause)
    world.freeze(1, before="Isend", comm="world.1.0", nth=12)
    for outcome in play(world, train)[::2]:
        assert "node 1 (host b) has been silent" in outcome.text
        assert outcome.seconds < 2 * LIMIT_SECONDS
