"""Statistics against NumPy, of whole and split arrays, with blocks of any length."""

import itertools
from functools import partial

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from array_nodes import on_nodes
from hypothesis import strategies as st
from nights import nightly, rows
from scipy.spatial import distance

import jdaso.array as ja
from jdaso.array import _in_place
from jdaso.array._layout import ArrayLayout
from jdaso.array._percentile import METHODS_OF_NUMPY

RNG = np.random.default_rng(0)
# As many rows on each of three nodes, which compile one program then.
X = RNG.normal(size=(6, 4)).astype(np.float32)
Y = RNG.normal(size=(3, 4)).astype(np.float32)
Z = (X + 1j * RNG.normal(size=X.shape)).astype(np.complex64)
LINE = np.array([3, 1, 2, 2, 9, -4, 2], np.float32)
SPLITS = rows((None, 0, 1), day=(0,))


def split(x, axis):
    return ja.asarray(x, split=axis)


def ragged(x, counts):
    """An array of which each node has so many rows."""
    node = ja.asarray(0).world.node
    begin = sum(counts[:node])
    return ja.from_blocks(x[begin : begin + counts[node]])


def check(function, expected, nodes=3, rtol=2e-5, atol=2e-5):
    """Checks that all nodes have the expected numbers, of one or several arrays."""
    for found in on_nodes(nodes, lambda: jax.tree.map(np.asarray, function(), is_leaf=_is_array)):
        found, wanted = (one if isinstance(one, tuple) else (one,) for one in (found, expected))
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.shape == np.shape(theirs)
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)


def _is_array(x):
    return isinstance(x, ja.Array)


@pytest.mark.parametrize("axis", SPLITS)
@pytest.mark.parametrize("kind", rows(("real", "complex"), day=("complex",)))
def test_covariances(axis, kind):
    x = Z if kind == "complex" else X
    check(lambda: ja.cov(split(x, axis)), np.cov(x))
    check(lambda: ja.cov(split(x, axis), rowvar=False, correction=0), np.cov(x.T, ddof=0))
    check(lambda: ja.corrcoef(split(x, axis), rowvar=False), np.corrcoef(x.T))
    check(lambda: ja.cov(split(x[:, 0], None if axis is None else 0)), np.cov(x[:, 0]))


@pytest.mark.parametrize("axis", SPLITS)
def test_weighted_means(axis):
    check(lambda: ja.average(split(X, axis), weights=np.abs(X)), np.average(X, weights=np.abs(X)))
    weights = np.arange(1, 7.0, dtype=np.float32)
    check(
        lambda: ja.average(split(X, axis), axis=0, weights=split(weights, 0)),
        np.average(X, axis=0, weights=weights),
    )
    check(lambda: ja.average(split(X, axis), axis=1), np.average(X, axis=1))
    with pytest.raises(ValueError, match="one for each index of the axis"):
        ja.average(X, axis=1, weights=weights)


@pytest.mark.parametrize(
    ("first", "second"), rows(itertools.product((None, 0, 1), (None, 0, 1)), day=[(0, 0)])
)
@pytest.mark.parametrize(
    "metric", rows(("euclidean", "sqeuclidean", "cityblock", "chebyshev"), day=("euclidean",))
)
@pytest.mark.parametrize("piece_bytes", [Y.nbytes, Y.nbytes - 1])
def test_distances(first, second, metric, piece_bytes, monkeypatch):
    monkeypatch.setattr(_in_place, "PIECE_BYTES", piece_bytes)
    wanted = distance.cdist(X, Y, metric)
    check(lambda: ja.cdist(split(X, first), split(Y, second), metric), wanted)
    if metric == "euclidean":
        expand = dict(quadratic_expansion=True)
        check(lambda: ja.cdist(split(X, first), split(Y, second), **expand), wanted, atol=1e-3)
        kernel = np.exp(-(wanted**2) / (2 * 1.5**2))
        check(lambda: ja.rbf(split(X, first), split(Y, second), sigma=1.5), kernel)


@pytest.mark.parametrize(("piece_bytes", "calls"), [(Y.nbytes, 1), (Y.nbytes - 1, 2)])
def test_distances_move_rows_once_to_each_node(piece_bytes, calls, monkeypatch):
    """Few rows are gathered, more pass from node to node while the distances are computed."""
    monkeypatch.setattr(_in_place, "PIECE_BYTES", piece_bytes)

    def moved():
        with ja.counted() as count:
            ja.cdist(split(X, 0), split(Y, 0))
        return count.calls, count.bytes_sent

    found = on_nodes(3, moved)
    assert [one for one, _ in found] == 3 * [calls]
    assert sum(sent for _, sent in found) == 2 * Y.nbytes


@pytest.mark.parametrize("metric", ["euclidean", "chebyshev"])
@pytest.mark.parametrize("piece_bytes", [1 << 23, 40])
def test_distances_of_fewer_rows_than_nodes(metric, piece_bytes, monkeypatch):
    """Nodes without rows have some columns' differences in a loop, as the others have."""
    monkeypatch.setattr(_in_place, "PIECE_BYTES", piece_bytes)
    one, two = np.ones((1, 20), np.float32), np.zeros((2, 20), np.float32)
    for first, second in ((one, two), (two, one), (one, one[:0])):
        wanted = distance.cdist(first, second, metric)
        check(lambda: ja.cdist(split(first, 0), split(second, 0), metric), wanted)  # noqa: B023
        check(lambda: ja.cdist(first, split(second, 0), metric), wanted)  # noqa: B023


def test_distances_of_near_rows_far_from_the_origin_keep_their_digits():
    far = np.float32(1e4) + np.arange(4, dtype=np.float32)[:, None] / 64
    check(lambda: ja.cdist(split(far, 0)), np.abs(far - far.T), rtol=1e-6, atol=0)


PERCENTS = np.array([[0, 7, 25, 50], [62.5, 75, 99, 100]])
METHODS = (
    "linear",
    "lower",
    "higher",
    "midpoint",
    "nearest",
    "hazen",
    "weibull",
    "median_unbiased",
    "normal_unbiased",
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    "interpolated_inverted_cdf",
)


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_percentiles(method):
    for n in (*range(1, 12), 100):
        share = np.unique([*np.arange(0, 2 * n + 1) / (2 * n), *PERCENTS.ravel() / 100])
        low, rest = METHODS_OF_NUMPY[method](n, share)
        places = np.clip(low + rest, 0, n - 1)
        theirs = np.quantile(np.arange(n, dtype=float), share, method=method)
        np.testing.assert_allclose(places, theirs, atol=1e-9, err_msg=f"{n} {share}")


@pytest.mark.parametrize("axis", SPLITS)
@pytest.mark.parametrize("along", rows((None, 0, 1), day=(1,)))
def test_percentiles(axis, along):
    for method, keepdims in (("linear", False), ("averaged_inverted_cdf", True)):
        about = dict(axis=along, method=method, keepdims=keepdims)
        wanted = np.percentile(X, PERCENTS, **about)
        check(lambda about=about: ja.percentile(split(X, axis), PERCENTS, **about), wanted)
    check(lambda: ja.median(split(X, axis), axis=along), np.median(X, axis=along))
    check(lambda: ja.quantile(split(X, axis), 0.3, axis=along), np.quantile(X, 0.3, axis=along))


def top(x, k, axis, largest):
    order = np.argsort(-x if largest else x, axis=axis, kind="stable")
    places = np.take(order, range(k), axis)
    return np.take_along_axis(x, places, axis), places


@pytest.mark.parametrize("axis", SPLITS)
@pytest.mark.parametrize("along", rows((0, 1), day=(0,)))
@pytest.mark.parametrize("largest", rows((True, False), day=(False,)))
def test_largest_elements(axis, along, largest):
    for x in (X, np.round(X * 2).astype(np.int32)):
        find = partial(lambda x: ja.topk(split(x, axis), 3, axis=along, largest=largest), x)
        check(find, top(x, 3, along, largest))


def test_largest_elements_of_few_and_of_nan():
    check(lambda: ja.topk(split(LINE, 0), 7), top(LINE, 7, 0, True), nodes=9)
    nan = np.where(LINE == 9, np.float32("nan"), LINE)
    check(lambda: ja.topk(split(nan, 0), 1), (np.float32(["nan"]), [4]))
    check(lambda: ja.topk(split(nan, 0), 2, largest=False), (np.float32([-4, 1]), [5, 1]))


def test_a_top_of_more_than_there_are_is_refused():
    with pytest.raises(ValueError, match="topk of 9 real elements"):
        ja.topk(LINE, 9)


def test_the_largest_elements_move_no_more_than_themselves():
    def moved():
        with ja.counted() as count:
            ja.topk(split(np.arange(300.0, dtype=np.float32), 0), 2)
        return count.calls, count.bytes_sent

    assert on_nodes(3, moved) == [(2, 2 * 2 * 4 * 2)] * 3


def test_pairs_in_boxes():
    x, y = RNG.normal(size=(2, 50)).astype(np.float32)
    edges = np.array([-1, 0, 0.5, 3], np.float32)
    weights = np.abs(x)
    for about in (dict(bins=(3, edges)), dict(bins=4, density=True, weights=weights)):
        wanted = np.histogram2d(x, y, **about)
        check(lambda about=about: ja.histogram2d(split(x, 0), y, **about), wanted)


WHOLE_EDGES = [
    [0, 2**24 + 1, 2**24 + 2],
    [-4.5, 0.5, 3, 3],
    [-(2.0**40), -128, 126.5, 2.0**40],
    [0, 127, 2**31 - 1, 2.0**31],
    [2.0**33, 2.0**34],
    [-(2.0**34), -(2.0**33)],
]


@pytest.mark.parametrize(
    ("dtype", "number"),
    rows(
        itertools.product(["int8", "uint8", "int32", "uint32", "bool"], range(len(WHOLE_EDGES))),
        day=[*(("int32", k) for k in (0, 3, 4, 5)), ("int8", 2), ("uint32", 2), ("bool", 1)],
    ),
)
def test_whole_numbers_in_boxes_are_not_rounded(dtype, number):
    """Floats of 32 bits take 2**24 + 1 for 2**24; an edge may lie beyond all of a type."""
    edges = WHOLE_EDGES[number]
    values = [-(2**31), -128, -5, 0, 1, 3, 126, 127, 2**24, 2**24 + 1, 2**24 + 3, 2**31 - 1]
    x = np.array(values).astype(dtype)
    wanted = np.histogram(x.astype(np.int64), edges)[0]

    def run():
        both = split(x, 0), split(np.zeros(len(x), np.float32), 0)
        compiled = jax.jit(lambda block: ja.histogram(block, np.array(edges))[0].block)
        boxes = ja.histogram2d(*both, bins=(edges, [0.0, 1.0]))[0]
        return boxes, ja.Array(compiled(jnp.asarray(x)), ArrayLayout(wanted.shape), boxes.world)

    check(run, (wanted[:, None], wanted), rtol=0)


def test_numbers_of_bins():
    for edges, right in (([-1, 0, 2], False), ([2, 0, -1], True)):
        wanted = np.digitize(X, edges, right=right)
        check(lambda e=edges, r=right: ja.digitize(split(X, 0), e, right=r), wanted)


@pytest.mark.parametrize("axis", SPLITS)
def test_products_of_all_pairs(axis):
    check(lambda: ja.outer(split(Z, axis), split(LINE, 0)), np.outer(Z, LINE))
    check(lambda: ja.trace(split(X, axis)), np.trace(X))


@nightly
def test_counts_do_not_stop_at_the_last_float_that_has_a_next_one():
    many = 2**24 + 3  # elements, of which floats of 32 bits count only 2**24

    def run():
        x = ja.zeros(many, split=0)
        return ja.histogram(x, 2, range=(0, 1))[0], ja.bincount(x.astype(int))

    check(run, ([many, 0], [many]), nodes=1, rtol=0)


def test_more_elements_than_32_bits_count_are_an_error():
    x = ja.zeros(3, dtype=ja.int8, split=0)
    x = ja.Array(x.block, ArrayLayout((2**31,), 0, (3, 2**31 - 3)), x.world)
    for function in (ja.count_nonzero, ja.argmax, ja.bincount, lambda x: ja.topk(x, 1)):
        with pytest.raises(ValueError, match="2147483648 elements need indices of 64 bits"):
            function(x)


@st.composite
def arrays(draw):
    """Rows of 3 nodes, some of which may have none."""
    counts = tuple(draw(st.lists(st.integers(0, 3), min_size=3, max_size=3)))
    hypothesis.assume(sum(counts))
    dtype = draw(st.sampled_from([np.float32, np.int32, np.complex64]))
    columns = draw(st.integers(1, 3))
    numbers = st.integers(-5, 5)
    size = sum(counts) * columns
    x = np.array(draw(st.lists(numbers, min_size=size, max_size=size)), dtype)
    if dtype == np.complex64:
        x = x * np.exp(1j * np.arange(size)).astype(dtype)
    return x.reshape(-1, columns), counts


@nightly
@hypothesis.settings(max_examples=60)
@hypothesis.given(arrays(), st.integers(0, 100))
def test_any_rows_on_any_nodes(given, percent):
    x, counts = given
    wide = np.atleast_2d(np.cov(x, rowvar=False, ddof=0))
    check(lambda: ja.cov(ragged(x, counts), rowvar=False, correction=0), wide, atol=1e-4)
    weights = np.arange(1, len(x) + 1, dtype=np.float32)
    average = np.average(x, axis=0, weights=weights)
    check(lambda: ja.average(ragged(x, counts), axis=0, weights=weights), average)
    check(lambda: ja.outer(ragged(x, counts), x[0]), np.outer(x, x[0]), atol=1e-4)
    if not np.iscomplexobj(x):
        check(lambda: ja.cdist(ragged(x, counts)), distance.cdist(x, x), atol=1e-4)
        wanted = np.percentile(x, percent, axis=0)
        check(lambda: ja.percentile(ragged(x, counts), percent, axis=0), wanted, atol=1e-4)
        check(lambda: ja.topk(ragged(x, counts), 1, axis=0), top(x, 1, 0, True))
        bins = np.arange(-5, 6)
        wanted = np.histogram(x, bins)[0]
        check(lambda: ja.histogram(ragged(x, counts), bins)[0], wanted)


def test_weights_of_narrow_whole_numbers_do_not_wrap():
    x, weights = np.full(4, 100, np.int8), np.array([2, 2, 1, 1], np.int8)
    check(lambda: ja.average(split(x, 0), weights=weights), np.float32(100))


def test_the_middle_of_two_elements():
    line = np.arange(11, dtype=np.float32)
    check(lambda: ja.percentile(split(line, 0), 70, method="midpoint"), np.float32(7))
    check(lambda: ja.median(split(np.array([1, *[np.inf] * 3], np.float32), 0)), np.float32(np.inf))


def test_the_smallest_of_infinity_and_nan():
    line = np.array([np.nan, np.inf, -np.nan, 1, -0.0, 0.0, -2], np.float32)
    for largest, places in ((False, [6, 4, 5, 3, 1]), (True, [0, 2, 1, 3, 4])):
        check(lambda largest=largest: ja.topk(split(line, 0), 5, largest=largest)[1], places)


def test_kernels_have_a_slope_on_their_diagonal():
    x = np.array([[0.0, 1], [2, 3]], np.float32)
    slope = jax.grad(lambda x: ja.sum(ja.rbf(x, ja.asarray([[1.0, 1]]))).block)(x)
    width = np.exp(-((x - 1) ** 2).sum(1) / 2)[:, None]
    np.testing.assert_allclose(slope, -(x - 1) * width, rtol=1e-5)
    assert np.isfinite(jax.grad(lambda x: ja.sum(ja.rbf(x)).block)(x)).all()


def test_edges_of_bins_rise():
    with pytest.raises(ValueError, match="must rise"):
        ja.histogram(ja.asarray(np.ones(3, np.float32)), [3.0, 2.0, 1.0])
