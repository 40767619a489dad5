"""Arrays against NumPy, for each split, also with fewer rows than nodes."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja
from jdaso.array import _in_place

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(2, 7, 5)).astype(np.float32)
V = RNG.normal(size=5).astype(np.float32)
SPLITS = (None, 0, 1)
NODES = rows((1, 2, 3, 9), day=(3,))
AXES = rows(SPLITS, day=(0,))


def split(x, axis):
    return ja.asarray(x, split=axis)


def check(nodes, function, expected):
    """Checks numbers, type of shape and fitting blocks on all nodes."""
    for found in on_nodes(nodes, lambda: _whole(function())):
        layout, block, whole = found
        assert block.shape == layout and whole.shape == np.shape(expected)
        np.testing.assert_allclose(whole, expected, rtol=2e-5, atol=1e-5)


def _whole(x):
    return x.layout.block_shape(x.world.node), x.block, np.asarray(x)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize(("first", "second"), [*itertools.product(SPLITS, SPLITS)])
def test_two_operands(nodes, first, second):
    check(nodes, lambda: split(A, first) + 2 * split(B, second), A + 2 * B)
    check(nodes, lambda: split(A, first) @ split(B.T, second), A @ B.T)
    if first is not None:
        both = np.concatenate([A, B], first)
        check(nodes, lambda: ja.concat([split(A, first), split(B, second)], axis=first), both)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize(("first", "second"), [*itertools.product(SPLITS, SPLITS)])
def test_products_of_more_than_one_piece(nodes, first, second, monkeypatch):
    monkeypatch.setattr(_in_place, "PIECE_BYTES", 24)
    check(nodes, lambda: split(A, first) @ split(B.T, second), A @ B.T)
    far = np.abs(A[:, None] - B).sum(-1)
    check(nodes, lambda: ja.cdist(split(A, first), split(B, second), "cityblock"), far)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("axis", AXES)
def test_operands_that_are_repeated(nodes, axis):
    check(nodes, lambda: split(A, axis) * V, A * V)
    check(nodes, lambda: split(A, axis) - split(V, 0), A - V)
    check(nodes, lambda: split(A, axis) > split(A[:1], axis), A > A[:1])
    check(
        nodes,
        lambda: ja.where(split(A, axis) > 0, split(A[:, :1], axis), 0),
        np.where(A > 0, A[:, :1], 0),
    )
    check(
        nodes,
        lambda: ja.broadcast_to(split(A[:, :1], axis), (2, 7, 5)),
        np.broadcast_to(A[:, :1], (2, 7, 5)),
    )


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "any", "mean", "var", "std"])
@pytest.mark.parametrize(
    ("axis", "along"),
    rows(itertools.product(SPLITS, (None, 0, 1)), day=[(0, None), (0, 0), (0, 1)]),
)
def test_reductions(nodes, name, axis, along):
    function = getattr(ja, name)
    expected = getattr(np, name)
    for keepdims in (False, True):
        wanted = expected(A, axis=along, keepdims=keepdims)
        about = {"axis": along, "keepdims": keepdims}
        check(nodes, partial(lambda about: function(split(A, axis), **about), about), wanted)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("axis", AXES)
def test_first_extremes(nodes, axis):
    whole = np.round(A)  # the same number several times
    for along, (ours, numpys) in itertools.product(
        (None, 0, 1), ((ja.argmin, np.argmin), (ja.argmax, np.argmax))
    ):
        first = partial(ours, axis=along)
        check(nodes, lambda first=first: first(split(whole, axis)), numpys(whole, along))


KEYS = {
    "rows": np.s_[2:6],
    "steps": np.s_[::3, 1:],
    "back": np.s_[::-1],
    "back by two": np.s_[6:1:-2, ::-1],
    "none": np.s_[5:2],
    "one row": np.s_[3],
    "last": np.s_[-1, 2],
    "new axis": np.s_[:, None, 1],
    "ellipsis": np.s_[..., 0],
    "numbers": np.s_[[3, -1, 1, 1]],
    "columns": np.s_[:, [0, 4, 2]],
    "pairs": np.s_[[1, 2, 6], [0, 3, 3]],
    "matrix": np.s_[[[0, 6], [2, 2]]],
    "mask of rows": A[:, 0] > 0,
    "mask": A > 0,
    "empty mask": A > 99,
}


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_indexing(nodes, axis, key):
    check(nodes, lambda: split(A, axis)[key], A[key])


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("axis", AXES)
def test_shapes(nodes, axis):
    check(nodes, lambda: ja.reshape(split(A, axis), (5, 7)), A.reshape(5, 7))
    check(nodes, lambda: split(A, axis).reshape((-1,)), A.reshape(-1))
    check(nodes, lambda: split(A, axis).T, A.T)
    check(nodes, lambda: ja.flip(split(A, axis)), A[::-1, ::-1])
    check(nodes, lambda: ja.roll(split(A, axis), -2, axis=0), np.roll(A, -2, 0))
    check(nodes, lambda: ja.roll(split(A, axis), 3), np.roll(A, 3))
    check(nodes, lambda: ja.stack([split(A, axis), split(B, axis)], axis=1), np.stack([A, B], 1))
    check(nodes, lambda: ja.moveaxis(split(A, axis)[None], 0, -1), A[..., None])


def test_random_numbers_do_not_depend_on_the_nodes():
    (alone,) = on_nodes(1, lambda: np.asarray(ja.random.normal(3, (7, 5))))
    for axis in (0, 1):
        draw = partial(ja.random.normal, 3, (7, 5), split=axis)
        for found in on_nodes(3, lambda draw=draw: np.asarray(draw())):
            np.testing.assert_array_equal(found, alone)
    assert abs(alone.mean()) < 0.5 and 0.5 < alone.std() < 1.5


@pytest.mark.parametrize("axis", AXES)
def test_histograms(axis):
    weights = np.abs(B)
    for about in ({}, {"bins": [-1.0, 0.0, 2.0]}, {"range": (-1, 1)}, {"weights": weights}):
        expected, edges = np.histogram(A, **about)
        count = partial(ja.histogram, **about)
        check(3, lambda count=count: count(split(A, axis))[0], expected)
        check(3, lambda count=count: count(split(A, axis))[1], edges)
    whole = np.array([3, 0, 3, 7, 1, 1, 1])
    check(3, lambda: ja.bincount(split(whole, 0)), np.bincount(whole))


def test_the_axis_may_be_given_by_place_as_to_numpy():
    x = split(A, None)
    for name in ("sum", "prod", "min", "max", "mean", "var", "std", "argmin", "argmax"):
        np.testing.assert_allclose(getattr(x, name)(1), getattr(A, name)(1), rtol=1e-5)
    for name in ("all", "any", "median", "sort", "argsort", "flip", "count_nonzero"):
        np.testing.assert_array_equal(getattr(ja, name)(x, 1), getattr(np, name)(A, 1))
    np.testing.assert_allclose(ja.percentile(x, 30, 1), np.percentile(A, 30, 1), rtol=1e-5)
    np.testing.assert_array_equal(ja.concat([x, x], 1), np.concatenate([A, A], 1))
    np.testing.assert_array_equal(ja.take(x, np.array([2, 0]), 1), A[:, [2, 0]])


def test_a_number_is_formatted_as_one():
    assert f"{split(A, None)[0, 0]:8.3f}" == f"{A[0, 0]:8.3f}"
    with pytest.raises(ValueError, match="format"):
        f"{split(A, None):8.3f}"


def test_a_sum_over_an_uneven_axis_comes_in_the_same_parts_on_all_nodes(monkeypatch):
    monkeypatch.setattr(_in_place, "PIECE_BYTES", 64)
    a, b = np.ones((16, 9), np.float32), np.ones((9, 2), np.float32)
    for found in on_nodes(2, lambda: np.asarray(split(a, 1) @ split(b, 0))):
        np.testing.assert_array_equal(found, np.full((16, 2), 9.0))


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 264), ("bool", 256)])
def test_a_long_sum_of_narrow_numbers_is_right(dtype, size, monkeypatch):
    """256 + 1 is 256 in bfloat16, and 255 + 1 is 0 in a byte."""
    monkeypatch.setattr(_in_place, "PIECE_BYTES", 2)
    a, b = np.ones((2, size), dtype), np.ones((size, 1), dtype)
    for found in on_nodes(2, lambda: split(a, 0) @ split(b, 0)):
        assert found.dtype == a.dtype
        assert found.block.tolist() == [[True if dtype == "bool" else size]]


def test_a_traced_product_is_one_part(monkeypatch):
    monkeypatch.setattr(_in_place, "PIECE_BYTES", 16)
    traced = jax.make_jaxpr(lambda x: (split(x, 0) @ split(x, 0)).block)(A[:5])
    assert len(traced.eqns) < 9
