"""`Batches`: who waits in a step that another node never comes to is told so, and nobody else."""

import pytest

from jdaso._batches import Batches


@pytest.fixture
def nodes():
    """Three nodes, whose messages lie in a list until they are delivered."""
    sent = []
    found = [Batches(lambda message, node=node: sent.append((node, message))) for node in range(3)]

    def deliver():
        for node, message in sent:
            for other in range(3):
                if other != node:
                    found[other].take(node, message)
        sent.clear()

    return found, deliver


def test_a_wait_for_a_node_without_a_batch_is_in_vain(nodes):
    (first, second, third), deliver = nodes
    for node in (first, second, third):
        node.begin_loop()
        node.begin_step(3)
    first.end_loop(4)  # its fourth was the last
    deliver()
    assert second.why_in_vain("waits") is None, "the fourth step is made by all"
    second.begin_step(4)
    assert second.why_in_vain("waits for it") == (
        "The data of node 0 ended after 4 batches, and this node waits for it with its batch "
        "number 5. Give all nodes equally many."
    )
    assert third.why_in_vain("waits") is None


def test_who_is_through_waits_for_those_with_more(nodes):
    (first, second, _), deliver = nodes
    first.begin_loop()
    second.begin_loop()
    first.begin_step(9)
    second.end_loop(4)
    first.end_loop(10)
    deliver()
    assert first.why_in_vain("agrees") is None and second.why_in_vain("agrees") is None


def test_a_late_word_of_an_earlier_loop_means_nothing(nodes):
    (first, second, _), deliver = nodes
    for node in (first, second):
        node.begin_loop()
        node.begin_step(3)
        node.end_loop(4)
        node.begin_loop()
        node.begin_step(7)
    deliver()
    assert first.why_in_vain("waits") is None
    second.end_loop(8)
    first.begin_step(8)
    deliver()
    assert "ended after 8 batches" in first.why_in_vain("waits")
