"""Headers of a node's ranks, put together before they are sent."""

import re

import numpy as np
import pytest
from network import World
from played import play

from jdaso._engines.shared_header import SharedHeader, one_header
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
    WEIGHT,
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


def test_words_that_one_rank_gives_are_the_first_ranks():
    """Times differ from rank to rank; nodes that decide by times must decide alike."""
    given = rows({LOSS_SUM: 5, FIRST_TIME: 3}, {LOSS_SUM: 5, FIRST_TIME: 9})
    np.testing.assert_array_equal(one_header(given), given[0])


def test_a_number_of_any_rank_that_is_not_finite_is_the_nodes():
    assert one_header(rows({}, {BAD_LEAF: 4}, {BAD_LEAF: 2}))[BAD_LEAF] == 4


@pytest.mark.parametrize("changed", range(3))
def test_each_ranks_checksum_counts(changed):
    sums = [2**31 - 2, -5, 123]
    before = one_header(rows(*({CHECKSUM: x} for x in sums)))[CHECKSUM]
    assert before == np.uint32((2**31 - 2 - 5 + 123) % 2**32).view(np.int32)
    sums[changed] -= 1
    assert one_header(rows(*({CHECKSUM: x} for x in sums)))[CHECKSUM] != before


def test_a_rank_that_is_left_out_leaves_its_node_out():
    assert one_header(rows({CHECKSUM: 3}, {CHECKSUM: LEFT_OUT}))[CHECKSUM] == LEFT_OUT


def test_a_failure_of_one_rank_is_its_nodes():
    assert one_header(rows({}, {STATUS: FAILED}))[STATUS] == FAILED
    assert one_header(rows({}, {}))[STATUS] == GONE + 2
    assert one_header(rows({STATUS: WELL}, {STATUS: WELL}))[STATUS] == WELL


def test_all_ranks_get_one_header():
    def program(node):
        own = rows({CHECKSUM: 10 + node.number, FIRST_TIME: node.number})[0]
        return SharedHeader(node.control.duplicate().comm, node.control).of(own)

    outcomes = play(World(3), program)
    for outcome in outcomes:
        np.testing.assert_array_equal(outcome.result, rows({CHECKSUM: 33})[0])


@pytest.mark.parametrize(
    ("place", "words", "said"),
    [
        (WEIGHT, (1.0, 0.0), r"different weights \(\[1.0, 0.0\], by rank\)"),
        (STEP, (7, 8), r"different updates \(\[7, 8\], by rank\)"),
        (STATUS, (GONE + 1, GONE + 2), "different optimizers"),
    ],
)
def test_ranks_that_diverge_get_an_error(place, words, said):
    """Each rank would weigh its parts of the leaves by itself, and the node would diverge."""

    def program(node):
        word = words[node.number]
        own = rows({place: np.float32(word).view(np.int32) if place == WEIGHT else word})[0]
        SharedHeader(node.control.duplicate().comm, node.control).of(own)

    for outcome in play(World(2), program):
        assert re.search(f"ranks of this node have {said}", outcome.text), outcome


def test_a_failed_rank_says_nothing_of_the_others():
    """A failed rank's words are not filled in."""

    def program(node):
        own = rows({STATUS: FAILED, STEP: 0} if node.number else {})[0]
        return SharedHeader(node.control.duplicate().comm, node.control).of(own)[STATUS]

    assert [x.result for x in play(World(2), program)] == [FAILED] * 2


def test_a_rank_that_fails_is_named():
    def program(node):
        if node.number == 1:
            raise ValueError("out of memory")
        SharedHeader(node.control.duplicate().comm, node.control).of(rows({})[0])

    outcomes = play(World(2), program)
    assert "node 1 on host b failed: ValueError: out of memory" in outcomes[0].text
