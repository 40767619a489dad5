"""Empty results, narrow types, rare arguments: all nodes have NumPy's numbers, or refuse alike."""

import jax.numpy as jnp
import numpy as np
import pytest
from array_nodes import on_nodes

import jdaso.array as ja

NAN = float("nan")
LINE = np.arange(7, dtype=np.float32)
WHOLE = np.array([3, 1, 4, 1, 5, 9, 2], np.int32)
TRUTHS = np.array([True, False, False, True, True])
PLANE = np.arange(12, dtype=np.float32).reshape(4, 3)
SYMMETRIC = np.diag(np.arange(1, 6)).astype(np.int32)
CUBE = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
POINTS = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
NARROW = jnp.asarray([1, NAN, 1, NAN, 1, 2, NAN, 1], jnp.bfloat16)


def changed(x, key, how, value):
    """`numpy.ufunc.at`, on a copy."""
    found = x.copy()
    how.at(found, key, value)
    return found


def of_numpy(x, key, value):
    found = x.copy()
    found[key] = value
    return found


def largest(v):
    return lambda a: ja.max(ja.linalg.eigvalsh(ja.linalg.lanczos(a(SYMMETRIC), 5, v)[1]))


# Given a function that makes an array: jdaso's result, and NumPy's.
FOUND = {
    "or": (lambda a: a(TRUTHS).at[1].add(True), changed(TRUTHS, 1, np.add, True)),
    "and": (lambda a: a(TRUTHS).at[[0, 4]].multiply(False), of_numpy(TRUTHS, [0, 4], False)),
    "divide": (lambda a: a(LINE).at[6].divide(4), of_numpy(LINE, 6, 1.5)),
    "power": (lambda a: a(WHOLE).at[2].power(2), of_numpy(WHOLE, 2, 16)),
    "no places of a row": (lambda a: a(PLANE).at[0, 2:2].set(1.0), PLANE),
    "no places of rows": (lambda a: a(PLANE).at[[0, 3], 3:].set(1.0), PLANE),
    "rows without columns": (lambda a: a(PLANE[:, :0]).at[1].set(1.0), PLANE[:, :0]),
    "axes of length 1 before": (
        lambda a: a(PLANE).at[0].set(np.ones((1, 1, 3))), of_numpy(PLANE, 0, 1),
    ),
    "narrow NaN": (
        lambda a: ja.unique_values(a(NARROW)).astype("float32"), [1, 2, NAN, NAN, NAN],
    ),
    "sums of narrow weights": (
        lambda a: ja.bincount(a(np.zeros(200, int)), weights=a(np.ones(200, "int8"))), [200.0],
    ),
    "sums of truths": (lambda a: ja.bincount(a(WHOLE), weights=a(WHOLE > 3)),
        np.bincount(WHOLE, WHOLE > 3)),
    "boxes of narrow weights": (
        lambda a: ja.histogram2d(a(np.zeros(200)), a(np.zeros(200)), 1,
                                 weights=a(np.ones(200, "int8")))[0], [[200.0]],
    ),
    "whole steps": (lambda a: ja.linspace(-1, 0, 4, dtype=int, split=0), [-1, -1, -1, 0]),
    "no steps": (lambda a: ja.linspace(0, 1, 0, split=0), np.linspace(0, 1, 0)),
    "a number before": (lambda a: ja.diff(a(LINE), prepend=3), np.diff(LINE, prepend=3)),
    "a number behind": (
        lambda a: ja.diff(a(PLANE), axis=0, append=3), np.diff(PLANE, axis=0, append=3),
    ),
    "neighbours that differ": (lambda a: ja.diff(a(TRUTHS)), np.diff(TRUTHS)),
    "no differences": (lambda a: ja.diff(a(LINE), n=0, prepend=3), LINE),
    "shifts of one axis": (lambda a: ja.roll(a(LINE), (1, 2), axis=0), np.roll(LINE, 3)),
    "a shift of two axes": (
        lambda a: ja.roll(a(PLANE), 1, axis=(0, 1)), np.roll(PLANE, 1, (0, 1)),
    ),
    "one pair of axes": (
        lambda a: ja.tensordot(a(PLANE), a(PLANE), axes=(0, 0)),
        np.tensordot(PLANE, PLANE, axes=(0, 0)),
    ),
    "a number of axes of NumPy's": (
        lambda a: ja.tensordot(a(PLANE), a(PLANE.T), axes=np.int64(1)), PLANE @ PLANE.T,
    ),
    "axes from the end, of NumPy's": (
        lambda a: ja.tensordot(a(PLANE), a(PLANE), axes=(np.int64(-2), np.int64(0))),
        PLANE.T @ PLANE,
    ),
    "the largest narrow number": (
        lambda a: ja.bincount(a(np.array([127, 0], "int8"))), np.bincount([127, 0]),
    ),
    "the largest narrow number without a sign": (
        lambda a: ja.bincount(a(np.array([255, 1], "uint8"))), np.bincount([255, 1]),
    ),
    "the largest number of 16 bits": (
        lambda a: ja.bincount(a(np.array([32767, 2], "int16"))), np.bincount([32767, 2]),
    ),
    "more counts than a narrow number": (
        lambda a: ja.bincount(a(np.array([3, 1], "int8")), minlength=300),
        np.bincount([3, 1], minlength=300),
    ),
    "transforms of no rows": (lambda a: ja.fft.fft(a(PLANE[:0])), np.zeros((0, 3))),
    "points of an empty axis": (lambda a: ja.fft.fft(a(PLANE[:, :0]), n=2), np.zeros((4, 2))),
    "one point": (lambda a: ja.fft.irfft(a(PLANE[:, :2])), np.fft.irfft(PLANE[:, :2])),
    "an axis twice": (
        lambda a: ja.fft.fftn(a(PLANE), axes=(0, 0)), np.fft.fftn(PLANE, axes=(0, 0)),
    ),
    "no diagonal": (lambda a: ja.eye(0, 3, split=0), np.eye(0, 3)),
    "percentiles without columns": (
        lambda a: ja.percentile(a(PLANE[:, :0]), 30.0, axis=0), np.zeros(0),
    ),
    "falling edges": (lambda a: ja.digitize(a(LINE), [5, 3, 1]), np.digitize(LINE, [5, 3, 1])),
    "quotient": (lambda a: divmod(a(WHOLE), 2)[0], WHOLE // 2),
    "rest": (lambda a: divmod(a(WHOLE), 2)[1], WHOLE % 2),
    "inverse of nothing": (lambda a: ja.linalg.pinv(a(np.zeros((0, 5)))), np.zeros((5, 0))),
    "rank of nothing": (
        lambda a: ja.linalg.matrix_rank(a(np.zeros((1, 3, 5, 0)))), np.zeros((1, 3)),
    ),
    "whole matrix, random start": (largest(None), 5.0),
    "whole matrix, given start": (largest([0.5, 0.5, 0.5, 0.5, 0.5]), 5.0),
    "a whole matrix's largest values": (
        lambda a: ja.linalg.rsvd(a(SYMMETRIC), 2).S, [5.0, 4.0],
    ),
    "NumPy's seeds": (
        lambda a: ja.random.normal(np.int64(3), (4,)) - ja.random.normal(3, (4,)), np.zeros(4),
    ),
    "rest of a number": (lambda a: divmod(20, a(WHOLE))[1], 20 % WHOLE),
    "quotient of a number": (lambda a: divmod(20, a(WHOLE))[0], 20 // WHOLE),
    "real parts": (lambda a: a(LINE + 2j).real.sum(), LINE.sum()),
    "imaginary parts": (lambda a: a(LINE + 2j).imag.sum(), 14.0),
    "bounds from an array": (
        lambda a: ja.linspace(ja.min(a(LINE)), ja.max(a(LINE)), 3), [0.0, 3.0, 6.0],
    ),
    "50 steps": (lambda a: ja.linspace(0, 1), np.linspace(0, 1)),
    "filled with a mean": (lambda a: ja.full(2, ja.mean(a(LINE))), [3.0, 3.0]),
    "filled like": (lambda a: ja.full_like(a(LINE), ja.mean(a(LINE))), np.full(7, 3.0)),
    "random bounds": (
        lambda a: ja.random.uniform(0, (2,), minval=ja.min(a(LINE)), maxval=jnp.float32(0)),
        [0.0, 0.0],
    ),
    "a step of shares": (
        lambda a: ja.quantile(ja.arange(6), 5 / 6, method="inverted_cdf"),
        np.quantile(np.arange(6), 5 / 6, method="inverted_cdf"),
    ),
    "an element beside infinities": (
        lambda a: ja.percentile(a(np.float32([0, 1, 2, np.inf, np.inf, np.inf])), 40), 2.0,
    ),
    "large numbers": (lambda a: ja.median(a(np.float32([-3e38, 3e38]))), 0.0),
    "percentiles of several axes": (
        lambda a: ja.percentile(a(CUBE), [30, 60], axis=(0, -1)),
        np.percentile(CUBE, [30, 60], axis=(0, -1)),
    ),
    "median of several axes": (
        lambda a: ja.median(a(CUBE), axis=(2, 1), keepdims=True),
        np.median(CUBE, axis=(2, 1), keepdims=True),
    ),
    "correlation with a longer line": (
        lambda a: ja.correlate(a(np.float32([1, 2])), a(np.float32([0, 1, 0.5])), "same"),
        np.correlate([1, 2], [0, 1, 0.5], "same"),
    ),
    "correlation with a much longer line": (
        lambda a: ja.correlate(a(LINE[1:5]), a(LINE), "same"),
        np.correlate(LINE[1:5], LINE, "same"),
    ),
    "rank of lists": (lambda a: ja.linalg.matrix_rank([[1.0, 2.0], [3.0, 4.0]]), 2),
    "broadcast to a number": (lambda a: ja.broadcast_to(a(LINE[:1]), 3), [0.0, 0.0, 0.0]),
    "a shape of NumPy's": (lambda a: ja.reshape(a(PLANE), np.array([2, 6])), PLANE.reshape(2, 6)),
    "a mask of two axes": (lambda a: a(PLANE)[a(PLANE) > 2.5], PLANE[PLANE > 2.5]),
    "spread to 1": (
        lambda a: ja.decomposition.PCA(2, whiten=True).fit_transform(
            a(POINTS * np.float32(1e-5))).std(axis=0),
        [0.9746794, 0.9746794],
    ),
}  # fmt: skip


@pytest.mark.parametrize("split", [None, 0])
@pytest.mark.parametrize(("function", "expected"), FOUND.values(), ids=FOUND)
def test_the_numbers_are_numpys(function, expected, split):
    def run():
        found = function(lambda x: ja.asarray(x, split=split))
        assert found.layout.block_shape(found.world.node) == found.block.shape
        return found.dtype, np.asarray(found)

    kinds = set()
    for kind, found in on_nodes(3, run):
        kinds.add(kind)
        assert found.shape == np.shape(expected)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert len(kinds) == 1, "all nodes have one type"


REFUSED = {
    "divide": (lambda a: a(WHOLE).at[6].divide(2), TypeError, "cannot return int32"),
    "divide by a mask": (lambda a: a(WHOLE).at[WHOLE > 3].divide(2), TypeError, "astype"),
    "power of truths": (lambda a: a(TRUTHS).at[4].power(True), TypeError, "cannot return bool"),
    "max of complex": (lambda a: a(LINE + 1j).at[0].max(2), TypeError, "complex64"),
    "too large": (lambda a: ja.take_along_axis(a(LINE), a([7])), IndexError, "length 7"),
    "too small": (
        lambda a: ja.take_along_axis(a(PLANE), np.array([[-4]] * 4), axis=1),
        IndexError, "axis 1 of length",
    ),
    "on one node": (
        lambda a: ja.take_along_axis(a(PLANE), np.array([[0], [0], [0], [3]]), axis=1),
        IndexError, "range",
    ),
    "fewer than none": (lambda a: ja.linspace(0, 1, -1), ValueError, "num=-1"),
    "less than no difference": (lambda a: ja.diff(a(LINE), n=-1), ValueError, "n=-1"),
    "edges in no order": (lambda a: ja.digitize(a(LINE), [1, 3, 2]), ValueError, "rise or fall"),
    "no points": (lambda a: ja.fft.irfft(a(LINE), n=0), ValueError, "got 0"),
    "no points of half": (lambda a: ja.fft.irfft(a(PLANE[:, :1])), ValueError, "got 0.*axis 1"),
    "no points of half, real": (lambda a: ja.fft.hfft(a(PLANE[:, :1])), ValueError, "got 0"),
    "no points of an empty axis": (lambda a: ja.fft.fft(a(PLANE[:0]), axis=0), ValueError, "got 0"),
    "no points, then half": (lambda a: ja.fft.rfft(a(PLANE[:, :0])), ValueError, "got 0"),
    "no points of planes": (lambda a: ja.fft.irfftn(a(PLANE[:, :1])), ValueError, "got 0"),
    "more sizes than axes": (
        lambda a: ja.fft.fftn(a(PLANE), s=(2, 2, 2)), ValueError, r"3 sizes.*\(2, 2, 2\).*2 axes",
    ),
    "more sizes of half": (lambda a: ja.fft.rfftn(a(LINE), s=(4, 4)), ValueError, "2 sizes"),
    "an axis that is missing": (
        lambda a: ja.tensordot(a(PLANE), a(PLANE), axes=([0], [2])), ValueError, "axis 2 is out",
    ),
    "a first axis that is missing": (
        lambda a: ja.tensordot(a(PLANE), a(PLANE), axes=(-4, 0)), ValueError, "axis -4 is out",
    ),
    "more axes than there are": (
        lambda a: ja.tensordot(a(PLANE.T), a(np.ones((3, 4, 2))), axes=3), ValueError, "is out of",
    ),
    "fewer rows than none": (lambda a: ja.eye(-1), ValueError, r"got the shape \(-1, -1\)"),
    "fewer columns than none": (lambda a: ja.eye(2, -1, split=1), ValueError, r"\(2, -1\)"),
    "no edges": (lambda a: ja.histogram(a(LINE), []), ValueError, "at least 1 edge"),
    "fewer bins than one": (lambda a: ja.histogram(a(LINE), -2), ValueError, "at least 1, got -2"),
    "no bins": (lambda a: ja.histogram(a(WHOLE), 0), ValueError, "at least 1, got 0"),
    "no boxes": (lambda a: ja.histogram2d(a(LINE), a(LINE), 0), ValueError, "at least 1, got 0"),
    "no groups": (lambda a: ja.cluster.KMeans(0).fit(a(PLANE)), ValueError, "clusters must be at"),
    "no medians": (lambda a: ja.cluster.KMedians(0).fit(a(PLANE)), ValueError, "1, got 0"),
    "no medoids": (lambda a: ja.cluster.KMedoids(-1).fit(a(PLANE)), ValueError, "1, got -1"),
    "a negative penalty": (
        lambda a: ja.linear_model.Lasso(-1.0).fit(a(PLANE), a(LINE[:4])), ValueError,
        "alpha must be at least 0, got -1.0",
    ),
    "a negative penalty of a path": (
        lambda a: ja.linear_model.lasso_path(a(PLANE), a(LINE[:4]), alphas=[1.0, -0.5]), ValueError,
        "alpha must be at least 0, got .*-0.5",
    ),
    "a negative penalty of a function": (
        lambda a: ja.linear_model.lasso(a(PLANE), a(LINE[:4]), -2), ValueError, "got -2",
    ),
    "percentile of nothing": (
        lambda a: ja.percentile(a(PLANE[:0]), 30.0, axis=0), ValueError, "needs elements",
    ),
    "a share above 1": (lambda a: ja.quantile(a(LINE), 30), ValueError, "shares of 0 to 1"),
    "dots between indices": (
        lambda a: a(CUBE)[:, [0, 1], ..., [1, 2]], NotImplementedError, "Leave '...' out",
    ),
    "shapes of other axes": (
        lambda a: ja.concat([a(PLANE), a(LINE)], axis=1), ValueError, "differ in axes",
    ),
    "the triangle of a line": (lambda a: ja.tril(a(LINE)), ValueError, "take matrices"),
    "the trace of a line": (lambda a: ja.trace(a(LINE)), ValueError, "two axes or more"),
    "no known points": (lambda a: ja.interp(a(LINE), [], []), ValueError, "at least one known"),
    "all of the variance": (
        lambda a: ja.decomposition.PCA(1.0).fit(a(POINTS)), ValueError, "share between 0 and 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("split", [None, 0])
@pytest.mark.parametrize(("function", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_all_nodes_refuse(function, error, words, split):
    def run():
        with pytest.raises(error, match=words):
            function(lambda x: ja.asarray(x, split=split))
        return True

    assert all(on_nodes(3, run))


@pytest.mark.parametrize("kind", ["edges", "normal", "alike", "far from 0", "tiny"])
def test_histograms_count_as_numpy_does_near_edges(kind):
    """Numbers that rounding may put into either bin; a range given or not; NaN and infinity."""
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 64, 2000)
    x = {
        "edges": whole / 64,
        "normal": rng.normal(size=2000),
        "alike": np.repeat(rng.normal(size=3), 700),
        "far from 0": 1e6 + whole,
        "tiny": 1e-30 * rng.random(2000),
    }[kind].astype(np.float32)
    for bins in (1, 7, 64, 117):
        expected = np.histogram(x, bins)[0]
        np.testing.assert_array_equal(ja.histogram(ja.asarray(x, split=0), bins)[0].block, expected)
    x[::97], x[::89] = np.nan, np.inf
    for ends in ((0.0, 1.0), (-0.3, 0.7)):
        expected = np.histogram(x, 10, ends)[0]
        found = ja.histogram(ja.asarray(x, split=0), 10, ends)[0]
        np.testing.assert_array_equal(found.block, expected)


def test_a_mask_of_a_whole_array_keeps_it_whole():
    def run():
        x = ja.asarray(PLANE)
        found = x[x > 2.5]
        assert found.split is None and 3.0 in x and 3.5 not in x
        return np.asarray(found.block)

    for found in on_nodes(3, run):
        np.testing.assert_array_equal(found, PLANE[PLANE > 2.5])


def test_the_median_keeps_a_narrow_type():
    assert on_nodes(2, lambda: ja.median(ja.asarray(LINE.astype("float16"))).dtype)[0] == "float16"


def test_runs_of_kmeans_by_rule():
    def run():
        x = ja.asarray(CUBE.reshape(12, 5), split=0)
        return [ja.cluster.KMeans(2, n_init=runs).fit(x).inertia_ for runs in ("auto", 1)]

    found, wanted = on_nodes(1, run)[0]
    assert found == wanted


def test_all_nodes_draw_the_seed_of_node_0():
    """Each node has a `RandomState` of its own, as where none was given a seed."""

    def run():
        x = ja.asarray(CUBE.reshape(12, 5), split=None)
        own = np.random.RandomState(x.world.node)
        model = ja.cluster.KMeans(4, random_state=own, max_iter=1).fit(x)
        return np.asarray(model.cluster_centers_.block)

    first, *others = on_nodes(3, run)
    for other in others:
        np.testing.assert_array_equal(other, first)
