"""Loops of unequal lengths: a node that waits for a missing step gets an error."""

import contextlib

import pytest
from network import World
from played import LIMIT_SECONDS, PROMPTLY_SECONDS, play

from jdaso._nodes.detector import _Tag


class Trainer:
    """Exchanges in each step of its loops; no node asks whether all have a batch."""

    def __init__(self, node):
        self.node, self.batches = node, node.known.batches
        self.comm = node.control.duplicate().comm

    def step(self, number):
        self.batches.begin_step(number)
        mine, all_ = bytes(1), bytearray(self.comm.Get_size())
        self.node.control.wait(self.comm.Iallgather(mine, all_), f"train at {number}")

    def begin(self):
        self.node.come("begin a loop")
        self.batches.begin()

    def train(self, count):
        """A whole loop."""
        with self.batches.loop():
            self.begin()
            for number in range(count):
                self.step(number)
            self.batches.end(count)
            self.node.come("end a loop")


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_node_with_more_batches_waits_in_vain_and_all_get_the_error(seed):
    def program(node):
        Trainer(node).train(4 if node.number == 1 else 7)

    outcomes = play(World(3, seed=seed), program)
    for k in (0, 2):
        assert (
            "The data of node 1 ended after 4 batches, and this node waits to train at 4 with its "
            "batch number 5. Give all nodes the same number of batches."
        ) in outcomes[k].text
    assert "failed: NodeError" in outcomes[1].text and "ended after 4 batches" in outcomes[1].text
    assert max(x.seconds for x in outcomes) < LIMIT_SECONDS / 2, "nobody waited for the limit"


def test_the_step_that_all_make_is_waited_for_however_early_the_word_comes():
    """Node 1's data ends with a batch that node 0 is still waiting for."""
    world = World(2)
    world.delay(3.0, source=1, dest=0, tag="Iallgather", since=1.0)

    def program(node):
        node.sleep(1.0)
        Trainer(node).train(4)

    assert [x.error for x in play(world, program, limit_seconds=20.0)] == [None] * 2


@pytest.mark.parametrize("seed", range(4))
def test_a_node_between_loops_is_waited_for(seed):
    """A node spends long between loops: the other does not wait in a loop for it."""

    def program(node):
        trainer = Trainer(node)
        trainer.train(4)
        node.sleep(3.0 * node.number)
        trainer.train(9)

    assert [x.error for x in play(World(2, seed=seed), program)] == [None] * 2


def test_a_late_word_of_an_earlier_loop_means_nothing():
    """A late report arrives when the next loop is at a step of a higher number."""
    world = World(2)
    world.delay(1.5, source=1, dest=0, tag=_Tag.BATCHES, nth=1)

    def program(node):
        trainer = Trainer(node)
        trainer.train(2)
        with trainer.batches.loop():
            trainer.begin()
            for number in range(6):
                node.sleep(0.5)
                trainer.step(number)
            trainer.batches.end(6)
            node.come("end a loop")

    assert [x.error for x in play(world, program)] == [None] * 2


def test_after_a_loop_in_a_step_the_outer_one_goes_on():
    def program(node):
        trainer = Trainer(node)
        with trainer.batches.loop():
            trainer.begin()
            for number in range(6):
                trainer.step(number)
                if number == 1:
                    trainer.train(2)
                    assert trainer.batches.why_in_vain("waits") is None, "the inner loop is over"
            if node.number == 0:
                trainer.batches.end(6)
                node.come("end a loop")
            trainer.step(6)

    first, second = play(World(2, seed=1), program)
    assert "data of node 0 ended after 6 batches" in second.text and "number 7" in second.text
    assert "data of node 0 ended after 6 batches" in first.text


def test_a_loop_that_an_error_leaves_on_all_is_forgotten():
    def program(node):
        trainer = Trainer(node)
        with contextlib.suppress(KeyError), trainer.batches.loop():
            trainer.begin()
            trainer.step(0)
            raise KeyError
        with trainer.batches.loop():
            trainer.begin()
            if node.number == 1:
                trainer.batches.end(0)
                node.come("end a loop")
            node.sleep(1.0)  # it reads its first batch, and has none to wait with
            assert trainer.batches.why_in_vain("prepares") is None
            trainer.step(0)

    first, second = play(World(2), program)
    assert "ended after 0 batches" in first.text and "batch number 1" in first.text
    assert first.seconds < 2.5 and second.seconds < first.seconds + PROMPTLY_SECONDS
