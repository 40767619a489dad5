"""Mail between partitions: each array is taken where it belongs, in any order of arrival."""

import numpy as np
import pytest
from network import EAGER_BYTES, Comm, World
from played import LIMIT_SECONDS, PROMPTLY_SECONDS, Members, play

from jdaso._mpi import requests
from jdaso._nodes.mail import Address, Mail
from jdaso._session.replicas import Replicas
from jdaso.pipeline._run.gatherer import Gatherer
from jdaso.pipeline._run.grid import Grid


def mail_of(node):
    """A pipeline's mail."""
    mail = Mail(node.control, lambda step, begin: None)
    node.closing.append(mail.close)
    return mail


def array_of(source, tag, step, size=7):
    return np.full(size, 100 * step + 10 * source + tag, np.float32)


@pytest.mark.parametrize("seed", [None, *range(5)])
@pytest.mark.parametrize("size", [0, 7, EAGER_BYTES // 4 + 1])
def test_each_array_is_taken_where_it_belongs(seed, size):
    """All nodes send to all, and expect and take in their own order, several steps at a time."""

    def program(node):
        mail, order = mail_of(node), np.random.default_rng(node.number)
        others = [k for k in range(3) if k != node.number]
        all_ = [(other, tag) for other in others for tag in range(4)]
        for step in range(3):
            mail.begin_step(step)
            for k in order.permutation(len(all_)):
                mail.expect(Address(*all_[k]), (size,), np.float32)
            for k in order.permutation(len(all_)):
                other, tag = all_[k]
                mail.send(Address(other, tag), array_of(node.number, tag, step, size))
            for k in order.permutation(len(all_)):
                other, tag = all_[k]
                got = mail.take(Address(other, tag), f"waits for {tag} of node {other}")
                np.testing.assert_array_equal(got, array_of(other, tag, step, size))
            mail.drain()
        node.come("end")

    world = World(3, seed=seed)
    assert [x.error for x in play(world, program)] == [None] * 3
    assert not [x for x in world.untaken() if x[2] < 4 and "mail" in x]


def test_what_comes_before_it_is_expected_waits():
    world = World(2)

    def program(node):
        mail = mail_of(node)
        if node.number == 0:
            mail.send(Address(1, 3), np.arange(4))
            mail.send(Address(1, 2), np.arange(5))
            mail.drain()
            return None
        node.sleep(2.0)
        for tag, size in ((2, 5), (3, 4)):
            mail.expect(Address(0, tag), (size,), np.int64)
        assert mail.expects(Address(0, 3)) and not mail.expects(Address(0, 1))
        return [mail.take(Address(0, tag), "waits").tolist() for tag in (3, 2)]

    assert play(world, program)[1].result == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("what", ["stuck", "stopped", "fails", "leaves"])
def test_a_vain_wait_for_a_stage_gets_the_reason(what):
    """Node 2 does nothing with node 1, which waits for node 0; all end."""
    world = World(3)
    if what == "stopped":
        world.freeze(0, at=0.5)

    def compute_a_stage():
        world.clock.forever()

    def program(node):
        mail = mail_of(node)
        mail.begin_step(4)
        if node.number == 0:
            node.sleep(1.0)
            if what == "stuck":
                compute_a_stage()
            if what == "fails":
                raise KeyError("boom")
            return
        if node.number == 1:
            mail.expect(Address(0, 1), (3,), np.float32)
            mail.take(Address(0, 1), "waits for the activations of stage 0")
        node.come("end")

    _, second, third = play(world, program)
    said = {
        "stuck": "Not arrived: node 0 (host a) is running, at ",
        "stopped": "Not arrived: node 0 (host a) has been silent for",
        "fails": "node 0 on host a failed: KeyError: 'boom'",
        "leaves": "node 0 ended the session while this node waits for the activations of stage 0",
    }[what]
    assert said in second.text and "step 4]" in second.text
    if what == "stuck":
        assert "in compute_a_stage" in second.text
    # Node 2 waits for both. It yields to node 1, which is nearer to the cause and reports it.
    assert "node 0" in third.text
    limit = {"fails": 1.0 + PROMPTLY_SECONDS, "leaves": LIMIT_SECONDS}
    assert second.seconds < limit.get(what, LIMIT_SECONDS + 2), second


def test_an_error_of_mpi_reaches_the_waiting_program():
    world = World(2, ulfm=True)
    world.kill(0, at=1.0)

    def program(node):
        mail = mail_of(node)
        if node.number == 0:
            world.clock.forever()
        mail.expect(Address(0, 1), (3,), np.float32)
        mail.take(Address(0, 1), "waits for the activations of stage 0")

    assert play(world, program)[1].text == "[node 1 of 2, host b, step 0] node 0 (host a) failed."


def test_a_sum_over_partitions_that_loses_one_names_it(monkeypatch):
    """The error keeps the memory into which MPI may still write the sum."""
    monkeypatch.setattr(requests, "_unfinished", [])
    world = World(2, ulfm=True)
    world.kill(0, at=1.0)

    def program(node):
        session = Members(
            control=node.control, num_nodes=2, node=node.number, topology=node.topology
        )
        gather = Gatherer(Grid(session, 2))
        gather(np.ones(3))
        if node.number == 0:
            world.clock.forever()
        gather(np.ones(3))

    assert play(world, program)[1].text == "[node 1 of 2, host b] node 0 (host a) failed."
    [(_, (sent, received))] = requests._unfinished
    assert sent.shape == (3,) and received.shape == (2, 3)


def test_what_was_sent_is_not_gone_before_it_was_taken(caplog):
    """`drain` waits for the other node's receive, and reports how long it waits and for whom."""
    world = World(2)
    large = EAGER_BYTES // 4 + 1

    def program(node):
        mail = mail_of(node)
        if node.number == 0:
            mail.send(Address(1, 1), np.zeros(large, np.float32))
            mail.drain()
            return node.clock.now - node.clock.begin
        node.sleep(40.0)
        mail.expect(Address(0, 1), (large,), np.float32)
        mail.take(Address(0, 1), "waits")
        return None

    assert play(world, program, limit_seconds=100)[0].result > 40.0
    (slow,) = {x.getMessage() for x in caplog.records if "its results are sent" in x.getMessage()}
    assert "node 1 (host b) is running, at" in slow


@pytest.mark.parametrize("use", [Gatherer, Grid.replicas])
def test_one_that_dies_as_the_grid_is_split_is_named(use):
    """MPI's only call for this blocks, and nothing ends it if a node is missing."""
    world = World(4)
    world.kill(1, before="Split")

    def program(node):
        session = Members(
            control=node.control,
            topology=node.topology,
            num_nodes=4,
            node=node.number,
            replicas=Replicas(),
            engine="mpi4py",
            timeout_seconds=LIMIT_SECONDS,
        )
        return use(Grid(session, 2))

    outcomes = play(world, program)
    assert outcomes[1].fate == "died"
    for outcome in (outcomes[0], *outcomes[2:]):
        assert "node 1 (host b) has been silent" in outcome.text, outcome
        assert outcome.seconds < 2 * LIMIT_SECONDS


def test_where_mpi_hangs_as_the_grid_is_split_all_end(monkeypatch):
    world = World(2)
    monkeypatch.setattr(Comm, "Split", lambda *about: world.clock.forever())

    def program(node):
        node.control.split(node.topology.comm, 0, node.number)

    for outcome in play(world, program):
        assert "waits to split a communicator, which did not end within 6 s" in outcome.text
    assert world.aborted is not None, "MPI_Finalize would wait for the thread"
