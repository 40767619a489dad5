"""`Batches`: who waits in a step that another node never comes to is told so, and nobody else."""

import pytest

from jdaso._batches import Batches


class Nodes(list):
    """Two nodes, whose messages are on their way until they are delivered."""

    def __init__(self):
        self._sent = []
        tell = [lambda message, node=node: self._sent.append((node, message)) for node in (0, 1)]
        super().__init__(Batches(2, each) for each in tell)

    def deliver(self):
        for node, message in self._sent:
            self[1 - node].take(node, message)
        self._sent.clear()


@pytest.fixture
def nodes():
    return Nodes()


def test_a_wait_for_a_node_without_a_batch_is_in_vain(nodes):
    first, second = nodes
    for node in nodes:
        node.begin()
        node.begin_step(3)
    first.end(4)  # its fourth was the last
    nodes.deliver()
    assert second.why_in_vain("waits") is None, "the fourth step is made by all"
    second.begin_step(4)
    assert second.why_in_vain("waits for it") == (
        "The data of node 0 ended after 4 batches, and this node waits for it with its batch "
        "number 5. Give all nodes the same number of batches."
    )
    assert first.why_in_vain("waits") is None


def test_who_is_through_waits_for_those_with_more(nodes):
    first, second = nodes
    first.begin()
    second.begin()
    first.begin_step(9)
    second.end(4)
    first.end(10)
    nodes.deliver()
    assert first.why_in_vain("agrees") is None and second.why_in_vain("agrees") is None


def test_a_late_word_of_an_earlier_loop_means_nothing(nodes):
    first, second = nodes
    for node in nodes:
        node.begin()
        node.begin_step(3)
        node.end(4)
        node.begin()
        node.begin_step(7)
    nodes.deliver()
    assert first.why_in_vain("waits") is None
    second.end(8)
    first.begin_step(8)
    nodes.deliver()
    assert "ended after 8 batches" in first.why_in_vain("waits")


def test_after_a_loop_in_a_step_the_outer_one_goes_on(nodes):
    for node in nodes:
        with node.loop():
            node.begin()
            node.begin_step(1)
            with node.loop():
                node.begin()
                node.begin_step(2)
                node.end(3)
            node.begin_step(5)
            nodes.deliver()
            assert node.why_in_vain("waits") is None, "the inner loop is over"


def test_a_loop_that_an_error_leaves_is_forgotten(nodes):
    first, second = nodes
    for node in nodes:
        with pytest.raises(KeyError), node.loop():
            node.begin()
            node.begin_step(5)
            raise KeyError
    with first.loop(), second.loop():
        second.begin()
        second.end(0)
        nodes.deliver()
        assert first.why_in_vain("prepares") is None, "it has no batch yet"
        first.begin()
        first.begin_step(0)
        assert "ended after 0 batches" in first.why_in_vain("waits")
