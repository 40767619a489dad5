"""Indexing that gave HeAT's users wrong shapes or values (its issues 592, 754, 825, 843, 1816)."""

import itertools

import numpy as np
import pytest
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja

X = np.arange(2 * 5 * 3, dtype=np.float32).reshape(2, 5, 3)
ONE_ROW = np.arange(4, dtype=np.float32).reshape(1, 4)
RAGGED = (0, 3, 0, 2)  # rows of each of four nodes


def check(nodes, function, expected):
    """Checks that all nodes have the expected numbers, in blocks that fit their layout."""

    def run():
        x = function()
        return x.layout.block_shape(x.world.node), x.block.shape, np.asarray(x)

    for told, shape, whole in on_nodes(nodes, run):
        assert told == shape and whole.shape == expected.shape
        np.testing.assert_array_equal(whole, expected)


def ragged():
    """Five rows, of which two of four nodes have none."""
    node = ja.asarray(0).world.node
    begin = sum(RAGGED[:node])
    return ja.from_blocks(X[0, begin : begin + RAGGED[node]])


KEYS = {
    "a number and a slice": np.s_[0, 1:4],
    "a number in the middle": np.s_[:, -2],
    "the last axis": np.s_[..., 2],
    "numbers around a slice": np.s_[1, :, 0],
    "a negative step": np.s_[:, ::-2, 1],
    "a slice beyond the end": np.s_[:, 3:99],
    "an empty slice": np.s_[:, 4:2],
    "arrays around a slice": np.s_[[1, 0], :, [2, 0]],
    "arrays side by side": np.s_[:, [4, 0, 4], [2, 0, 1]],
    "an array and a number": np.s_[1, [3, 3, 0]],
    "a matrix of numbers": np.s_[:, [[0, 4], [2, 2]]],
    "a mask behind a slice": (slice(None), np.array([True, False, True, True, False])),
    "a mask and a number": (X[..., 0] > 7, 1),
    "a new axis behind a number": np.s_[1, None, ..., None],
    "no numbers": (slice(None), np.array([], int)),
}

DAY = (
    "a number and a slice",
    "a negative step",
    "arrays around a slice",
    "arrays side by side",
    "a mask behind a slice",
    "a new axis behind a number",
)


@pytest.mark.parametrize("nodes", rows((1, 3, 7), day=(3,)))
@pytest.mark.parametrize("axis", rows((None, 0, 1, 2), day=(1,)))
@pytest.mark.parametrize("name", rows(KEYS, day=DAY))
def test_keys_of_three_axes(nodes, axis, name):
    key = KEYS[name]
    check(nodes, lambda: ja.asarray(X, split=axis)[key], X[key])


def test_rows_that_few_nodes_have():
    rows = X[0]
    keys = (
        np.s_[1],
        np.s_[3:],
        np.s_[:2],
        np.s_[::-1],
        np.s_[[4, 0, 4]],
        rows[:, 0] > 5,
        np.s_[-1, 2],
    )
    for key in keys:
        check(4, lambda key=key: ragged()[key], rows[key])
    for key in (np.s_[1], np.s_[[4, 0]], rows[:, 0] > 5):
        expected = rows.copy()
        expected[key] = 0
        check(4, lambda key=key: ragged().at[key].set(0.0), expected)
    check(4, lambda: ragged() + ja.asarray(rows, split=0), 2 * rows)
    check(4, lambda: ragged().sum(axis=0), rows.sum(0))


def test_one_row_on_many_nodes():
    for key in (
        np.s_[0],
        np.s_[0, 1:],
        np.s_[:, 2],
        np.s_[1:],
        np.s_[[0, 0, 0]],
        ONE_ROW[:, 0] == 0,
    ):
        check(3, lambda key=key: ja.asarray(ONE_ROW, split=0)[key], ONE_ROW[key])


def test_an_index_that_is_itself_split():
    index, mask = np.array([3, 0, 3]), X[0, :, 0] > 4
    for first, second in itertools.product((None, 0), repeat=2):
        pick = lambda a=first, b=second: ja.asarray(X[0], split=a)[ja.asarray(index, split=b)]  # noqa: E731
        check(3, pick, X[0][index])
        pick = lambda a=first, b=second: ja.asarray(X[0], split=a)[ja.asarray(mask, split=b)]  # noqa: E731
        check(3, pick, X[0][mask])


def test_places_of_several_axes_move_only_what_is_asked_for():
    def run():
        x = ja.zeros((1000, 1000), split=0)
        with ja.counted() as count:
            x[[0, 999], [1, 2]]
        return count.bytes_sent

    assert sum(on_nodes(2, run)) <= 16


@pytest.mark.parametrize("nodes", [1, 3])
def test_one_element_is_a_number_without_axes(nodes):
    for found in on_nodes(nodes, lambda: ja.asarray(X, split=1)[1, 4, 0]):
        assert found.shape == () and found.split is None and float(found) == X[1, 4, 0]
    with pytest.raises(IndexError, match="Index 5 is out of range for axis 1 of length 5"):
        on_nodes(nodes, lambda: ja.asarray(X, split=1)[1, 5, 0])
