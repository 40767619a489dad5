"""Headers of a node's ranks, put together before they are sent."""

import numpy as np
import pytest
from network import World
from played import play

from jdaso._engines.shared_header import SharedHeader, together
from jdaso._payload.words import (
    BAD_LEAF,
    CHECKSUM,
    FAILED,
    GONE,
    HEADER,
    LEFT_OUT,
    LOSS_SUM,
    STATUS,
    STEP,
    TIMES,
    WELL,
)


def rows(*changes):
    found = np.zeros((len(changes), HEADER), np.int32)
    for row, change in zip(found, changes, strict=True):
        row[STEP], row[STATUS] = 7, GONE + 2
        for place, word in change.items():
            row[place] = word
    return found


FIRST_TIME = TIMES.start


def test_the_first_rank_tells_what_only_one_can():
    """Times differ from rank to rank; nodes that decide by them must decide alike."""
    given = rows({LOSS_SUM: 5, FIRST_TIME: 3}, {LOSS_SUM: 5, FIRST_TIME: 9})
    np.testing.assert_array_equal(together(given), given[0])


def test_a_number_of_any_rank_that_is_not_finite_is_the_nodes():
    assert together(rows({}, {BAD_LEAF: 4}, {BAD_LEAF: 2}))[BAD_LEAF] == 4


@pytest.mark.parametrize("changed", range(3))
def test_each_ranks_checksum_counts(changed):
    sums = [2**31 - 2, -5, 123]
    before = together(rows(*({CHECKSUM: x} for x in sums)))[CHECKSUM]
    assert before == np.uint32((2**31 - 2 - 5 + 123) % 2**32).view(np.int32)
    sums[changed] -= 1
    assert together(rows(*({CHECKSUM: x} for x in sums)))[CHECKSUM] != before


def test_a_rank_that_is_left_out_leaves_its_node_out():
    assert together(rows({CHECKSUM: 3}, {CHECKSUM: LEFT_OUT}))[CHECKSUM] == LEFT_OUT


def test_a_failure_of_one_rank_is_its_nodes():
    assert together(rows({}, {STATUS: FAILED}))[STATUS] == FAILED
    assert together(rows({}, {}))[STATUS] == GONE + 2
    assert together(rows({STATUS: WELL}, {STATUS: WELL}))[STATUS] == WELL


def test_all_ranks_get_one_header():
    def program(node):
        own = rows({CHECKSUM: 10 + node.number, FIRST_TIME: node.number})[0]
        return SharedHeader(node.control.duplicate().comm, node.control).of(own)

    outcomes = play(World(3), program)
    for outcome in outcomes:
        np.testing.assert_array_equal(outcome.result, rows({CHECKSUM: 33})[0])


def test_a_rank_that_fails_is_named():
    def program(node):
        if node.number == 1:
            raise ValueError("out of memory")
        SharedHeader(node.control.duplicate().comm, node.control).of(rows({})[0])

    outcomes = play(World(2), program)
    assert "node 1 on host b failed: ValueError: out of memory" in outcomes[0].text
