"""Reductions without NaN, and comparisons of whole arrays, against NumPy."""

import numpy as np
import pytest
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja

RNG = np.random.default_rng(0)
A = RNG.normal(size=(7, 4)).astype(np.float32)
A[RNG.random(A.shape) < 0.4] = np.nan
A[:, 2] = np.nan
NAMES = rows(
    ("nansum", "nanprod", "nanmin", "nanmax", "nanmean", "nanvar", "nanstd"),
    day=("nanprod", "nanmin", "nanstd"),
)
NODES = rows((1, 2, 3, 9), day=(3,))


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # NumPy warns of columns of NaN
def test_as_numpy(nodes, name):
    arrays = [A, np.arange(6, dtype=np.int32).reshape(3, 2)]
    if name not in ("nanmin", "nanmax"):
        arrays.append((A + 1j * A[::-1]).astype(np.complex64))
    calls = [(x, axis, keep) for x in arrays for axis in (None, 0, 1) for keep in (False, True)]

    def ours():
        return [
            np.asarray(getattr(ja, name)(ja.asarray(x, split=split), axis=axis, keepdims=keep))
            for x, axis, keep in calls
            for split in (None, 0, 1)
        ]

    theirs = [
        getattr(np, name)(x, axis=axis, keepdims=keep) for x, axis, keep in calls for _ in range(3)
    ]
    for found in on_nodes(nodes, ours):
        for one, other in zip(found, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_a_correction_leaves_no_variance_of_one():
    for found in on_nodes(
        2, lambda: np.asarray(ja.nanvar(ja.asarray(A, split=0), 1, correction=1))
    ):
        np.testing.assert_allclose(found, np.nanvar(A, 1, ddof=1), rtol=2e-5)


def test_whole_arrays_are_compared():
    near = np.nan_to_num(A)

    def ours():
        x, y = ja.asarray(near, split=0), ja.asarray(near * np.float32(1 + 1e-6), split=1)
        return (
            np.asarray(ja.isclose(x, y, rtol=1e-7)),
            [ja.allclose(x, y), ja.allclose(x, y, rtol=1e-8, atol=0), ja.allclose(x, near)],
            [ja.array_equal(x, near), ja.array_equal(x, y), ja.array_equal(x, near[:1])],
        )

    for flags, close, equal in on_nodes(3, ours):
        wanted = np.isclose(near, near * np.float32(1 + 1e-6), rtol=1e-7)
        np.testing.assert_array_equal(flags, wanted)
        assert close == [True, False, True] and equal == [True, False, False]


def test_nan_equals_nan_only_if_asked():
    x = ja.asarray(A, split=0)
    assert not ja.array_equal(x, x) and ja.array_equal(x, x, equal_nan=True)
    assert not ja.allclose(x, x) and ja.allclose(x, x, equal_nan=True)
