"""Elements before and after those of an array, against NumPy."""

import jax
import numpy as np
import pytest
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja

RNG = np.random.default_rng(0)
ARRAYS = [RNG.normal(size=shape).astype(np.float32) for shape in ((4, 3), (1,), (7,), (2, 3, 4))]
MODES = rows(("constant", "edge", "reflect", "symmetric", "wrap"), day=("constant", "reflect"))
NODES = rows((1, 2, 3, 5), day=(3,))


def widths(ndim):
    return [2, (1, 2), [(k, 2 * k + 1) for k in range(ndim)], {-1: (3, 1)}, {0: 2}]


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("x", ARRAYS, ids=lambda x: str(x.shape))
def test_as_numpy(nodes, mode, x):
    def ours(split):
        given = ja.asarray(x, split=split)
        return [np.asarray(ja.pad(given, one, mode)) for one in widths(x.ndim)]

    theirs = [np.pad(x, one, mode) for one in widths(x.ndim)]
    for split in (None, *range(x.ndim)):
        for found in on_nodes(nodes, ours, split):
            for one, other in zip(found, theirs, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int8", "bool", "bfloat16"])
def test_constants_of_each_end(dtype):
    x, values = np.ones((0, 2), dtype), [(1, 0), (3, 4)]
    wanted = np.pad(np.ones((0, 2)), 3, constant_values=values).astype(dtype)

    def ours():
        return np.asarray(ja.asarray(x, split=0).pad(3, constant_values=values))

    for found in on_nodes(2, ours):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, wanted)


def test_constants_move_nothing():
    def run():
        with ja.counted() as count:
            found = ja.pad(ja.asarray(ARRAYS[0], split=0), ((5, 1), (0, 2)))
        return count.calls, found.counts

    assert on_nodes(2, run) == 2 * [(0, (7, 3))]


def test_a_number_has_no_ends():
    assert ja.pad(5.0, 2).shape == ja.pad(5.0, 2, "edge").shape == np.pad(5.0, 2).shape == ()


def test_it_has_a_slope():
    def loss(x):
        return ja.sum(ja.pad(ja.asarray(x), 1, constant_values=9.0) ** 2).block

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(ARRAYS[0]), 2 * ARRAYS[0])


@pytest.mark.parametrize(
    ("width", "mode", "words"),
    [
        (-1, "constant", "none negative"),
        (1.5, "edge", "whole numbers"),
        ((1, 2, 3), "constant", "a pair for each of 2 axes"),
        ({2: 1}, "constant", "axis 2 is out of range"),
        (1, "mirror", "no mode 'mirror'. Take constant, edge"),
    ],
)
def test_what_is_refused(width, mode, words):
    with pytest.raises(ValueError, match=words):
        ja.pad(ja.ones((4, 3), split=0), width, mode)


def test_nothing_can_be_repeated_of_no_elements():
    with pytest.raises(ValueError, match="Axis 0 has no elements that mode 'edge'"):
        ja.pad(ja.ones((0,), split=0), 1, "edge")
