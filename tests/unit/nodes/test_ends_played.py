"""Ends of processes: the job ends once all have reported, and nothing is left behind for MPI."""

import contextlib
import re

import pytest
from network import World
from played import LIMIT_SECONDS, Node, Uncaught, play

import jdaso
from jdaso._base.errors import summary
from jdaso._mpi.topology import find_topology
from jdaso._nodes import exit as _exit
from jdaso._nodes import own_work
from jdaso._nodes.heartbeat import STARTED
from jdaso._session import ending


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_node_that_ends_the_job_waits_for_the_others_reports(seed):
    """Node 1 ends by an error of its own; node 2's program takes a while to end by the same."""
    world, raised = World(3, seed=seed), []

    def program(node):
        if node.number == 1:
            raise Uncaught(KeyError("boom"))
        try:
            node.come("finalize")
        except Exception as error:
            node.sleep(2.0 * node.number)
            raised.append((node.number, str(error)))
            raise

    play(world, program)
    assert [number for number, _ in raised] == [0, 2]
    assert all("KeyError: 'boom'" in text for _, text in raised)
    assert world.aborted == 1


def test_the_job_is_not_kept_from_its_end_by_one_that_is_stuck():
    world = World(3)

    def program(node):
        node.come()
        if node.number == 1:
            raise Uncaught(KeyError("boom"))
        if node.number == 2:
            world.clock.forever()
        node.come("finalize")

    outcomes = play(world, program)
    assert "KeyError: 'boom'" in outcomes[0].text
    assert world.aborted == 1
    assert world.clock.now - world.clock.begin < 8


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_one_whose_program_does_not_end_takes_the_job_with_it(seed, monkeypatch, capsys):
    """The launcher has read why before the job ends: it drops what is in its pipes."""
    world, read = World(2, seed=seed), []
    monkeypatch.setattr(_exit, "speak_out", lambda: read.append(capsys.readouterr().err))

    def program(node):
        node.come()
        if node.number == 1:
            node.fail("KeyError: 'boom'")
            node.close(failed=True)
            world.clock.forever()
        node.come("again")

    first, _ = play(world, program)
    assert "KeyError: 'boom'" in first.text and world.aborted == 0
    assert "its program does not end" in "".join(read)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("seed", range(4))
def test_where_all_have_failed_mpi_is_left_as_usual(seed):
    world = World(3, seed=seed)

    def program(node):
        node.come(step=node.number)

    outcomes = play(world, program)
    assert all(x.error for x in outcomes) and world.aborted is None


@pytest.mark.parametrize("seed", range(4))
def test_after_an_end_in_order_nothing_is_on_its_way(seed):
    world = World(4, seed=seed)

    def program(node):
        for step in range(5):
            node.come(step=step)
        return node.known

    outcomes = play(world, program)
    assert [x.error for x in outcomes] == [None] * 4 and world.aborted is None
    left = [x for x in world.untaken() if x[2] != 5]  # a heartbeat may be, of one still open
    assert not left


@pytest.mark.parametrize("after_error", [False, True])
@pytest.mark.parametrize("next_ones", [(0, 2), (0,), ()])
def test_one_that_fails_between_two_sessions_ends_the_next_one_only(next_ones, after_error):
    """A session of other ranks, and a program without another session, go on.

    The first session may have ended with an error that all nodes have caught.
    """
    world = World(4)

    def program(rank, comm):
        with contextlib.suppress(ValueError), jdaso.Session(timeout_seconds=600.0):
            if after_error:
                raise ValueError("NaN")
        mine = comm.Split(int(rank == 3), rank)
        if rank == 1:
            _exit._doom(summary(KeyError("boom")))
            raise KeyError("boom")
        world.clock.sleep(1.0)
        if rank == 3:
            return find_topology(mine)
        return find_topology(comm) if rank in next_ones else None

    first, failed, third, alone = world.run(program, _exit._end)
    for rank, outcome in ((0, first), (2, third)):
        if rank in next_ones:
            assert outcome.text == (
                f"[node {rank} of 4, host {'abcd'[rank]}] A session could not start: rank 1 on "
                "host b failed after it had closed its last Session: KeyError: 'boom'"
            )
            assert outcome.seconds < 10
        else:
            assert outcome.error is None
    assert failed.error and alone.error is None
    if not after_error:  # else all nodes have an error, and MPI can be finalized
        assert (world.aborted is None) == (not next_ones)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("of_all", [True, False])
def test_an_error_that_one_node_has_caught_ends_nothing_once_all_have_met_again(of_all, seed):
    """A session of some ranks does not show that the others are past the error."""
    world = World(3, seed=seed)

    def program(rank, comm):
        with contextlib.suppress(ValueError), jdaso.Session():
            if rank == 1:
                world.clock.sleep(1.0)
                raise ValueError("NaN")
        some = comm if of_all else comm.Split(int(rank == 2), rank)
        node = Node(world, find_topology(some), LIMIT_SECONDS)
        if of_all or rank != 2:
            node.come()
        node.close()

    outcomes = world.run(program, _exit._end)
    assert [x.error for x in outcomes] == [None] * 3
    assert world.aborted == (None if of_all else 1)
    if of_all:
        assert max(x.seconds for x in outcomes) < 5


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_may_close_the_failed_session_after_all_have_met_again(seed):
    """The ranks that closed it before do not leave the last one to wait for them."""
    world = World(3, seed=seed)

    def program(rank, comm):
        first = Node(world, find_topology(comm), 600.0)
        if rank != 0:
            first.fail("NaN")
            first.close(failed=True)
        second = Node(world, find_topology(comm), 600.0)
        second.come()
        second.close()
        if rank == 0:
            world.clock.sleep(0.5)
            first.close(failed=True)

    outcomes = world.run(program, _exit._end)
    assert [x.error for x in outcomes] == [None] * 3 and world.aborted is None
    assert max(x.seconds for x in outcomes) < 10


def test_a_session_opened_before_the_failure_settles_nothing():
    world = World(3)

    def program(rank, comm):
        outer = Node(world, find_topology(comm), LIMIT_SECONDS)
        inner = Node(world, find_topology(comm), LIMIT_SECONDS)
        outer.come()
        if rank == 1:
            inner.fail("NaN")
        inner.close(failed=rank == 1)
        outer.close()

    world.run(program, _exit._end)
    assert world.aborted == 1


def test_a_node_that_ends_long_before_the_others_does_not_wait():
    world = World(2)

    def program(node):
        node.come()
        node.sleep(10.0 * node.number)

    first, second = play(world, program)
    assert first.error is None and second.error is None
    assert first.seconds < 3 and 10 < second.seconds < 13


def test_a_session_that_nobody_closes_is_closed_as_the_process_ends():
    world = World(2)

    def program(rank, comm):
        from played import Node

        from jdaso._mpi.topology import find_topology

        node = Node(world, find_topology(comm, LIMIT_SECONDS), LIMIT_SECONDS)
        node.come()
        return node

    outcomes = world.run(program, _exit._end)
    assert all(x.result.closed for x in outcomes) and world.aborted is None


def test_a_process_that_dies_with_ulfm_is_named_and_ends_the_job():
    world = World(3, ulfm=True)
    world.kill(1, before="Iallgather", nth=6)

    def program(node):
        for step in range(9):
            node.come(step=step)

    first, dead, third = play(world, program)
    assert dead.fate == "died"
    for outcome in (first, third):
        assert re.search(
            r"^\[node [02] of 3, host [ac]\] node 1 \(host b\) failed\.$", outcome.text
        )
        assert outcome.seconds < 2


@pytest.mark.parametrize("late", [None, 0.5])
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, 8))
def test_one_that_dies_as_sessions_begin_is_named(nth, side, late):
    """MPI reports the failure to node 0 at once, or after node 2 has ended the job."""
    world = World(3, ulfm=True)
    world.kill(1, nth=nth, **{side: None})
    if late is not None:
        world.notice(0, late)

    def program(node):
        node.come()
        node.come()

    for outcome in play(world, program)[::2]:
        assert re.search(r"\bnode 1( \(host b\))? failed", outcome.text), outcome
        assert outcome.seconds < 1.5


@pytest.mark.parametrize("takes_part", [False, True])
def test_a_step_that_does_not_end_is_reported_and_given_up(takes_part, monkeypatch, caplog):
    """A last step may take for hours, as long as it still starts exchanges."""
    monkeypatch.setattr(own_work, "_LONGEST_SECONDS", 100.0)
    world = World(2, limit_seconds=1000)

    def program(node):
        def step():
            for k in range(20 if takes_part else 0):
                node.sleep(50.0)
                node.known.heartbeats.note(STARTED, k + 1)
            if not takes_part:
                world.clock.forever()

        own_work.await_own_work(node.control, step, "steps that it has called")

    outcomes = play(world, program)
    if takes_part:
        assert [x.error for x in outcomes] == [None] * 2
    else:
        for outcome in outcomes:
            assert "took part in no exchange for 100 s. Look for a callback" in outcome.text
            assert 100 < outcome.seconds < 105
    assert "waits for steps that it has called, for 3" in caplog.text


def test_a_session_that_cannot_be_closed_ends_the_job(monkeypatch):
    monkeypatch.setattr(own_work, "_LONGEST_SECONDS", 100.0)
    world = World(2, limit_seconds=1000)
    monkeypatch.setattr(ending, "steps_called", lambda devices: world.clock.forever)

    def program(rank, comm):
        with jdaso.Session(timeout_seconds=20):
            pass

    for outcome in world.run(program, _exit._end):
        assert "This node waits for steps that it has called" in outcome.text
        assert outcome.seconds < 110
    assert world.aborted is not None, "a thread waits for the step, and Python's end would too"
