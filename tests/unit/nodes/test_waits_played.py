"""Waits for a node that is stuck, stopped, leaves or fails, and the errors that end them."""

import re

import pytest
from network import World
from played import LIMIT_SECONDS, PROMPTLY_SECONDS, play
from virtual_clock import Thread

from jdaso._base.errors import summary
from jdaso._nodes.wait import _YIELD_SECONDS


def others(outcomes, node):
    """Returns all nodes but one, which raise in time and name that one and nobody else."""
    rest = [x for k, x in enumerate(outcomes) if k != node]
    for outcome in rest:
        assert outcome.fate == "ended" and outcome.error is not None, outcomes
        assert outcome.text.startswith("[node ")
        named = set(re.findall(r"\bnodes? (\d)\b", outcome.text.partition("]")[2]))
        assert named == {str(node)}, outcome.text
    return rest


def test_one_that_is_stuck_is_named_with_its_place():
    world = World(3)

    def load_the_next_batch():
        world.clock.forever()

    def program(node):
        node.come()
        if node.number == 1:
            load_the_next_batch()
        node.come("finalize")

    for outcome in others(play(world, program), 1):
        assert "waits to finalize, which did not end within 6 s" in outcome.text
        assert "node 1 (host b) is running, at " in outcome.text
        assert "in load_the_next_batch" in outcome.text
        assert LIMIT_SECONDS < outcome.seconds < LIMIT_SECONDS + 1
    assert world.aborted in (0, 2), "the one that is stuck ends with the job"


def test_a_stopped_node_is_silent_and_is_ended_with_the_job():
    world = World(3, limit_seconds=60)
    world.freeze(1, 20.0, at=1.0)

    def program(node):
        for step in range(100):
            node.sleep(0.1)
            node.come(step=step)

    outcomes = play(world, program)
    for outcome in others(outcomes, 1):
        assert "node 1 (host b) has been silent for" in outcome.text
        assert outcome.seconds < 1 + LIMIT_SECONDS + 1
    # Node 1 would have continued, had the others not given it up and ended the job.
    assert outcomes[1].fate == "cut off" and world.aborted in (0, 2)


def test_a_stop_shorter_than_the_limit_harms_nobody(caplog):
    world = World(3)
    world.freeze(1, LIMIT_SECONDS - 0.8, at=1.0)

    def program(node):
        node.known.patience.note("call", 0.5)
        for step in range(30):
            node.sleep(0.1)
            node.come(step=step)

    assert [x.error for x in play(world, program)] == [None] * 3
    assert "node 1 (host b) has been silent" in caplog.text, "the others say who is missing"
    assert "did not run for 5." in caplog.text, "and it itself that it was stopped"


def test_one_that_was_stopped_blames_nobody_for_what_it_missed():
    """The stopped node's clock shows a long wait; the others were there all the time."""
    world = World(2)
    world.freeze(1, 4 * LIMIT_SECONDS, at=1.0)

    def program(node):
        node.come()
        if node.number == 0:
            node.sleep(1 + 4 * LIMIT_SECONDS)  # longer than node 1 stands still
        node.come("finalize")

    assert [x.error for x in play(world, program)] == [None] * 2


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_one_that_leaves_is_named_after_a_grace(seed):
    """A node's last messages may still be on their way."""

    def program(node):
        node.come()
        if node.number != 2:
            node.come("finalize")
        return node.clock.now

    for outcome in others(play(World(3, seed=seed), program), 2):
        assert "node 2 ended the session while this node waits to finalize" in outcome.text
        assert "the same number of updates" in outcome.text
        assert 5.0 < outcome.seconds < LIMIT_SECONDS


def test_what_one_sent_before_it_left_is_taken():
    """A collective came last, whose messages are slower than the node's farewell."""
    world = World(2)
    world.delay(3.0, source=0, dest=1, tag="Iallgather", since=0.5)

    def program(node):
        node.sleep(1)
        node.come("finalize")

    first, second = play(world, program)
    assert first.error is None and second.error is None
    assert second.seconds > 4 > first.seconds + 0.5


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_an_error_reaches_all_at_once(seed):
    def program(node):
        node.come()
        if node.number == 1:
            raise KeyError("boom")
        node.come("finalize")

    outcomes = play(World(4, seed=seed), program)
    for outcome in others(outcomes, 1):
        assert "node 1 on host b failed: KeyError: 'boom'" in outcome.text
        assert outcome.seconds < outcomes[1].seconds + PROMPTLY_SECONDS


@pytest.mark.parametrize("seed", range(6))
def test_of_two_errors_at_once_all_get_one_and_nobody_waits(seed):
    def program(node):
        node.come()
        if node.number in (1, 2):
            raise KeyError(f"boom {node.number}")
        node.come("finalize")

    world = World(4, seed=seed)
    outcomes = play(world, program)
    assert isinstance(outcomes[1].error, KeyError) and isinstance(outcomes[2].error, KeyError)
    for k in (0, 3):
        assert re.search("node [12] on host [bc] failed: KeyError: 'boom [12]'", outcomes[k].text)
        assert outcomes[k].seconds < 2 * PROMPTLY_SECONDS
    assert world.aborted is None, "all know of a failure: MPI is left as usual"


def test_a_consequence_of_an_error_is_not_reported_as_a_new_one():
    """Node 1 reports its failure to node 2, however soon node 0 fails because of it."""
    world = World(3)
    world.delay(2.0, source=1, dest=2, tag=1)  # the alarm

    def program(node):
        node.come()
        if node.number == 1:
            raise KeyError("boom")
        node.come("finalize")

    outcomes = play(world, program)
    assert "KeyError: 'boom'" in outcomes[0].text and outcomes[0].seconds < PROMPTLY_SECONDS
    assert "KeyError: 'boom'" in outcomes[2].text and 2 < outcomes[2].seconds < 2.5


def test_a_lost_alarm_is_made_up_for_by_the_grace():
    """Node 0 reports to node 2 that something failed, though not what."""
    world = World(3)
    world.lose(source=1, dest=2, tag=1)

    def program(node):
        node.come()
        if node.number == 1:
            raise KeyError("boom")
        node.come("finalize")

    first, _, third = play(world, program)
    assert "KeyError: 'boom'" in first.text
    assert re.search("nodes? 0(, 1)? failed while this node waits to finalize", third.text)
    assert third.seconds < LIMIT_SECONDS


def test_one_that_dies_unseen_is_silent():
    """Nothing reports a host that lost its power, without ULFM."""
    world = World(3)
    world.kill(1, before="Iallgather", nth=6)

    def program(node):
        for step in range(9):
            node.come(step=step)

    for outcome in others(play(world, program), 1):
        assert "node 1 (host b) has been silent for 6" in outcome.text
        assert "The wait is given up." in outcome.text
        assert outcome.seconds < LIMIT_SECONDS + 1


def test_where_no_limit_is_given_silence_ends_a_wait_long_before_patience():
    outcomes = {}
    for what in ("die", "hang"):
        world = World(2, least_pause=0.5)

        def program(node, what=what, world=world):
            if node.number == 1:
                if what == "die":
                    world.clock.kill(1)
                world.clock.forever()
            node.come()

        outcomes[what] = play(world, program, limit_seconds=None)[0]
    assert "has been silent for 60" in outcomes["die"].text
    assert 60 < outcomes["die"].seconds < 63
    assert "within 600 s. Not arrived: node 1 (host b) is running" in outcomes["hang"].text
    assert 600 < outcomes["hang"].seconds < 604


def test_a_link_that_loses_data_is_reported_as_stuck():
    """All nodes arrive, but node 1's data is lost; the nodes that have it wait for node 0 next."""
    world = World(3)
    world.lose(source=1, dest=0, tag="Iallgather", since=0.5)

    def program(node):
        node.sleep(1)
        node.come("begin an epoch")
        node.come("finalize")

    first, *rest = play(world, program)
    assert "waits to begin an epoch" in first.text
    for outcome in (first, *rest):  # the others yield to node 0, which is nearer to the cause
        assert "All nodes have arrived: the network is slow, or stuck." in outcome.text
        assert outcome.seconds < 1 + LIMIT_SECONDS + 1


def test_where_the_network_parts_each_side_names_the_other():
    world = World(4)
    for one in (0, 1):
        for other in (2, 3):
            world.lose(source=one, dest=other, since=1.0)
            world.lose(source=other, dest=one, since=1.0)

    def program(node):
        node.sleep(2)
        node.come("finalize")

    outcomes = play(world, program)
    for node, outcome in enumerate(outcomes):
        for other in {0: "cd", 1: "cd", 2: "ab", 3: "ab"}[node]:
            number = "abcd".index(other)
            assert f"node {number} (host {other}) has been silent for" in outcome.text
        assert outcome.seconds < 2 + LIMIT_SECONDS + 1


def test_a_slow_node_is_named_in_the_log_and_waited_for(caplog):
    world = World(3)

    def program(node):
        for _ in range(3):
            node.come()
        node.known.patience.note("call", 0.5)
        if node.number == 2:
            node.sleep(4)
        node.come("finalize")

    assert [x.error for x in play(world, program)] == [None] * 3
    slow = [x.getMessage() for x in caplog.records if "waits to finalize, for" in x.getMessage()]
    assert {x[6] for x in slow} == {"0", "1"}
    assert all("usual: 0.5 s" in x and "node 2 (host c) is running, at" in x for x in slow)


def test_long_waits_for_calls_set_their_limit_and_short_ones_do_not():
    world = World(2, least_pause=0.5)

    def program(node):
        if node.number == 1:
            node.sleep(100)  # evaluates, say
        for _ in range(40):
            node.come()
        return node.known.patience.limit_seconds("call")

    first, second = (x.result for x in play(world, program, limit_seconds=None))
    assert 100 * 99 < first < 100 * 102 and second == 600


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_wait_for_a_node_that_waits_itself_gets_the_cause(seed):
    """Node 0 waits for node 1, which waits in a session of its own, with node 2, for that.

    All limits are the same, and node 0 began first. Node 0 yields: node 1 names the stuck node.
    """
    from played import Node

    from jdaso._mpi.topology import find_topology

    world = World(3, seed=seed)

    def program(node):
        group = node.topology.comm.Split(min(node.number, 1), node.number)
        node.come()
        if node.number == 0:
            return node.come("finalize")
        inner = Node(world, find_topology(group, LIMIT_SECONDS), LIMIT_SECONDS)
        inner.known.share(node.known)  # as a pipeline's replicas do
        if node.number == 2:
            world.clock.forever()
        node.sleep(0.5)
        try:
            inner.come("average between replicas")
        except Exception as error:
            inner.fail(summary(error))
            raise
        finally:
            inner.close()

    outcomes = play(world, program)
    assert "waits to average between replicas, which did not end within 6 s" in outcomes[1].text
    assert "node 1 (host c) is running, at" in outcomes[1].text, "by its number among the replicas"
    assert "node 1 on host b failed: NodeError: [node 0 of 2 (rank 1), host b]" in outcomes[0].text
    assert "average between replicas" in outcomes[0].text
    assert outcomes[0].seconds > outcomes[1].seconds


def test_two_that_wait_for_each_other_both_end():
    """Each node waits for the other's call: neither yields for ever."""

    def program(node):
        node.come()
        node.control._turn.calls += 3 * (node.number == 0)  # node 0 believes to be further
        request = node.control._group.comm.Irecv(bytearray(8), 1 - node.number, 5)
        node.control.wait(request, "hear the other")

    outcomes = play(World(2), program)
    for outcome in outcomes:
        assert "within 6 s" in outcome.text
        assert outcome.seconds < LIMIT_SECONDS + _YIELD_SECONDS + 1


def test_a_signal_handler_that_calls_all_nodes_does_not_wait_for_what_it_interrupted():
    """The thread that holds the lock would wait for it."""
    world, nodes = World(2), {}

    def handler():
        nodes[0].come("save a checkpoint")

    world.do(handler, 0, before="Iallgather", nth=4)  # two of them start a session

    def program(node):
        nodes[node.number] = node
        for step in range(5):
            node.come(step=step)

    outcomes = play(world, program)
    assert "A signal handler was about to save a checkpoint while its thread" in outcomes[0].text
    assert "A signal handler was about to save a checkpoint" in outcomes[1].text
    assert max(x.seconds for x in outcomes) < PROMPTLY_SECONDS


def test_a_thread_that_waits_for_another_ones_call_ends_in_the_limit_too():
    world, said = World(2), []

    def program(node):
        if node.number == 1:
            world.clock.forever()

        def second():
            try:
                node.come("evaluate")
            except Exception as error:
                said.append((world.clock.now - world.clock.begin, str(error)))

        thread = Thread(world.clock, target=second, name="second")
        thread.start()
        try:
            node.come("train")
        finally:
            thread.join()

    outcome = play(world, program)[0]
    assert "waits to train, which did not end within 6 s" in outcome.text
    ((seconds, text),) = said
    assert "which did not end within 6 s" in text and "node 1 (host b)" in text
    assert seconds < 2 * LIMIT_SECONDS + 2
