"""NaN, narrow floats, whole numbers and truths: each node has the numbers that NumPy has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from array_nodes import on_nodes

import jdaso.array as ja

NAN, INF = float("nan"), float("inf")
LINE = np.arange(7, dtype=np.float32)


def s(x):
    return ja.asarray(x, split=0)


def check(function, expected, dtype=None):
    """Checks that all of three nodes have the expected numbers."""
    for found in on_nodes(3, lambda: np.asarray(function())):
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=1e-6)
        assert dtype is None or found.dtype == dtype, found.dtype


@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize("name", ["min", "max"])
def test_nan_reaches_all_nodes(place, name):
    line = LINE.copy()
    line[place] = NAN
    check(lambda: getattr(ja, name)(s(line)), NAN)
    columns = np.stack([line, LINE], 1)
    check(lambda: getattr(ja, name)(s(columns), axis=0), getattr(np, name)(columns, axis=0))


REFUSED = {
    "range of NaN": (lambda: ja.histogram(s([1.0, 2, NAN])), ValueError, "must be finite"),
    "max of complex": (lambda: ja.max(s([1j, 2, 3])), TypeError, "complex numbers have no order"),
    "sort of complex": (lambda: ja.sort(s([1j, 2, 3])), TypeError, "complex numbers have no order"),
    "bins of complex": (lambda: ja.histogram(s([1j, 2, 3])), TypeError, "no order. Take abs"),
    "box of complex": (lambda: ja.histogram2d(s([1.0]), s([1j])), TypeError, "no order. Take abs"),
    "bin of complex": (lambda: ja.digitize(s([1j, 2, 3]), [0.0]), TypeError, "no order. Take abs"),
    "bincount": (lambda: ja.bincount(s([1, -2, 3])), ValueError, "got -2"),
}  # fmt: skip


@pytest.mark.parametrize(("function", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_result_is_refused_on_all_nodes(function, error, words):
    def refused():
        with pytest.raises(error, match=words):
            function()
        return True

    assert on_nodes(3, refused) == [True] * 3


BIG = 2**24
WHOLE = np.array([BIG, BIG + 1, BIG + 3, -5, 0, 7], np.int32)
HALF = jnp.arange(3000) % 7
STACK = np.arange(24, dtype=np.float32).reshape(1, 6, 4)


@pytest.mark.parametrize(
    ("function", "expected", "dtype"),
    [
        (lambda: ja.histogram(s(WHOLE), np.int64(4))[0], np.histogram(WHOLE, 4)[0], None),
        (lambda: ja.histogram(s(WHOLE), [0, BIG + 1, BIG + 2])[0], [3, 1], None),
        (lambda: ja.histogram(s(np.uint8([0, 200, 255])), 2)[0], [1, 2], None),
        (lambda: ja.histogram(s(LINE > 2), 2)[0], [3, 4], None),
        (lambda: ja.mean(s(HALF.astype("bfloat16"))), np.mean(HALF).astype("bfloat16"), "bfloat16"),
        (lambda: ja.var(s(HALF.astype("float16"))), np.float16(np.var(HALF)), "float16"),
        (lambda: ja.mean(s(np.arange(5, dtype=np.int8))), 2, "float32"),
        (lambda: ja.mean(s(LINE[:0])), NAN, None),
        (lambda: ja.linalg.vector_norm(s([3, 4])), 5, "float32"),
        (lambda: ja.linalg.vector_norm(s([True, False]), ord=1), 1, "float32"),
        (lambda: ja.median(s([1, 2, 4, 5])), 3, "float32"),
        (lambda: ja.median(s([1.0, INF, 2.0])), 2, None),
        (lambda: ja.percentile(s([1.0, NAN, 2.0]), [0, 50]), [NAN, NAN], None),
        (lambda: ja.cumulative_sum(s(np.full(5, 100, np.int8))), np.arange(1, 6) * 100, "int32"),
        (lambda: ja.tril(s(np.ones((3, 3), bool))), np.tril(np.ones((3, 3))), bool),
        (lambda: ja.arange(5.5, split=0), np.arange(5.5), "float32"),
        (lambda: ja.arange(1, 10, 4, split=0), [1, 5, 9], "int32"),
        (lambda: ja.sum(s(STACK[0]), axis=np.int64(0)), STACK[0].sum(0), None),
        (lambda: ja.zeros(np.int64(4), split=0).reshape(np.int64(-1)), np.zeros(4), None),
        (lambda: s(LINE)[[True, False] * 3 + [True]], LINE[::2], None),
        (lambda: ja.unique_values(s(jnp.asarray([2, NAN, 1, 2], "bfloat16"))), [1, 2, NAN], None),
    ],
)
def test_types(function, expected, dtype):
    check(function, expected, dtype)


@pytest.mark.parametrize("shapes", [((1, 2, 3), (1, 3, 4)), ((5, 2, 3), (1, 3, 4))])
def test_products_of_stacks(shapes):
    a, b = (np.ones(shape, np.float32) for shape in shapes)
    check(lambda: s(a) @ s(b), a @ b)


def test_a_sum_over_no_numbers_is_zero():
    check(lambda: ja.tensordot(s(np.ones((4, 0))), s(np.ones((0, 2))), axes=1), np.zeros((4, 2)))


def test_whole_numbers_of_64_bits_are_distinguished():
    with jax.enable_x64(True):
        line = 2**60 + np.array([2, 1, 1, 0, 3, 2])

        def run():
            with jax.enable_x64(True):
                values, counts = ja.unique_counts(s(line))
                assert np.asarray(ja.unique_values(s(line))).tolist() == np.unique(line).tolist()
                return np.asarray(values).tolist(), np.asarray(counts).tolist()

        assert on_nodes(3, run) == [(np.unique(line).tolist(), [1, 2, 2, 1])] * 3
