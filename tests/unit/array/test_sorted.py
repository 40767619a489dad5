"""Sorting, percentiles, different elements and running sums, against NumPy."""

import tracemalloc

import numpy as np
import pytest
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja
from jdaso.array import _sort

RNG = np.random.default_rng(0)
LINES = {
    "floats": RNG.normal(size=23).astype(np.float32),
    "ties": RNG.integers(-3, 3, 23).astype(np.int32),
    "special": np.array([np.nan, 1, -np.inf, 0.0, -0.0, np.inf, 3, 3], np.float32),
    "lowest": np.array(
        [2, -np.inf, -3e38, 1, -np.inf, np.nan, -np.inf, -np.inf, -np.inf], np.float32
    ),
    "bytes": RNG.integers(0, 5, 17).astype(np.uint8),
    "alike": np.zeros(5, np.float32),
    "none": np.array([], np.float32),
    "truths": RNG.integers(0, 2, 9).astype(bool),
}
A = RNG.normal(size=(12, 3)).astype(np.float32)
NODES = rows((1, 2, 3, 9), day=(3,))
AXES = rows((None, 0, 1), day=(0,))


def check(nodes, function, expected, **near):
    for found in on_nodes(nodes, lambda: np.asarray(function())):
        np.testing.assert_allclose(found, expected, **(near or {"rtol": 0}))


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_sorting_is_stable_and_shares_the_rows_out(nodes, line):
    def split():
        return ja.asarray(line, split=0)

    check(nodes, lambda: ja.sort(split()), np.sort(line))
    check(nodes, lambda: ja.argsort(split()), np.argsort(line, kind="stable"))
    for counts in on_nodes(nodes, lambda: ja.sort(split()).counts):
        assert max(counts) - min(counts) <= 1
    if not np.isnan(line.astype(float)).any():
        falling = len(line) - 1 - np.argsort(line[::-1], kind="stable")[::-1]
        check(nodes, lambda: ja.argsort(split(), descending=True), falling)
        check(nodes, lambda: ja.unique_values(split()), np.unique(line))
        values, counts = np.unique(line, return_counts=True)
        check(nodes, lambda: ja.unique_counts(split())[0], values)
        check(nodes, lambda: ja.unique_counts(split())[1], counts)


def test_each_number_of_a_line_moves_at_most_once():
    line = np.arange(400, dtype=np.float32)

    def sent(function, numbers):
        with ja.counted() as count:
            function(ja.asarray(numbers, split=0))
        return count.bytes_sent

    # Bytes of 4 nodes: 3 cuts, 16 counts of each of 8 digits, added; then two places of each cut.
    search = 4 * 8 * (8 * 3 * 16 * 2 * 3 // 4 + 3 * 2 * 3)
    for function, arrays in ((ja.sort, 1), (ja.argsort, 2)):  # numbers, and their places
        assert sum(on_nodes(4, sent, function, line)) == search
        backwards = sum(on_nodes(4, sent, function, line[::-1].copy())) - search
        assert backwards == arrays * line.nbytes  # all of them change nodes


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("axis", AXES)
def test_along_an_axis(nodes, axis):
    def split():
        return ja.asarray(A, split=axis)

    near = {"rtol": 1e-5, "atol": 1e-6}
    for along in (0, 1):
        check(nodes, lambda a=along: ja.sort(split(), axis=a), np.sort(A, along))
        check(nodes, lambda a=along: ja.cumulative_sum(split(), axis=a), A.cumsum(along), **near)
        check(nodes, lambda a=along: ja.cumulative_prod(split(), axis=a), A.cumprod(along), **near)
        check(nodes, lambda a=along: ja.diff(split(), axis=a), np.diff(A, axis=along))
    check(nodes, lambda: ja.tril(split(), k=-1), np.tril(A, -1))
    check(nodes, lambda: ja.triu(split()), np.triu(A))
    percents = [0, 25, 50, 99.5, 100]
    check(nodes, lambda: ja.percentile(split(), percents), np.percentile(A, percents), **near)
    check(nodes, lambda: ja.median(split()), np.median(A), **near)


@pytest.mark.parametrize("kind", [np.uint8, np.uint32])
def test_integers_are_sorted_with_their_places_in_little_memory(kind):
    """Beside the result of 12 bytes a number, another 8 are taken."""
    order = np.random.default_rng(0).integers(0, 200, 100_000).astype(kind)
    tracemalloc.start()
    try:
        found, places = _sort._sorted_by_place(order)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 21 * len(order)
    wanted = np.argsort(order, kind="stable")
    assert (found.dtype, places.dtype) == (order.dtype, wanted.dtype)
    np.testing.assert_array_equal(found, order[wanted])
    np.testing.assert_array_equal(places, wanted)
