"""Sums and means that a step waits for, on the host; node 0 of two runs here, without MPI."""

import weakref
from functools import partial

import numpy as np
import pytest
from pair import Pair

from jdaso._engines.sums import Sums
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import wire_of
from jdaso._payload.words import BAD_LEAF, HEADER, STATUS

SHAPES = ((700,), (40, 9))


@pytest.fixture
def make():
    pair = Pair()

    def make(wire="float32"):
        wire = wire_of(wire)
        layout = layout_of([np.zeros(x, np.float32) for x in SHAPES], 2, 4096, wire.block)
        return Sums(pair.channel(layout, wire, ""), 0), pair.other_of(layout, wire, "")

    yield make
    pair.close()


def leaves(seed):
    random = np.random.default_rng(seed)
    return [random.normal(size=x).astype(np.float32) for x in SHAPES]


HEAD = np.zeros(HEADER, np.int32)


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "int8", "int4"])
def test_a_sum_and_what_the_wire_lost_of_it_are_exact(make, wire):
    """The sum of two nodes that send the same, and on each node half of the rounding."""
    sums, _ = make(wire)
    x = leaves(0)
    heads, total, lost = sums.total(1, x, HEAD)
    assert not heads[:, STATUS].any()
    if wire == "float32":
        for a, b in zip(total, x, strict=True):
            np.testing.assert_array_equal(a, 2 * b)
        return
    flat = lambda y: np.concatenate([np.array(z).reshape(-1) for z in y])  # noqa: E731
    place = sums._channel.staging.numbers()
    mine = np.zeros(place.whole.shape, bool)
    for (a, _), rows in zip(place.ranges, place.rows, strict=True):
        mine[a : a + rows.shape[1]] = True  # the part that node 0 has summed
    owned = flat(sums.leaves.read(mine))
    error = 2 * flat(x) - flat(total)
    np.testing.assert_allclose(error[~owned], 2 * flat(lost)[~owned], atol=2e-2)
    assert np.abs(error).max() > 1e-3


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_sum_keeps_no_memory(make, wire):
    sums, _ = make(wire)
    made, places = [], sums._channel.staging

    def counted(make):
        place = make()
        made.append(weakref.ref(place.whole.base))
        return place

    for name in ("numbers", "sums"):
        setattr(places, name, partial(counted, getattr(places, name)))
    found = sums.total(1, leaves(0), HEAD)
    assert len(made) == (2 if wire == "int8" else 1)  # float32 is summed where it lies
    assert any(kept() is not None for kept in made)
    del found
    assert all(kept() is None for kept in made)


def test_a_mean_is_weighted(make):
    sums, other = make()
    other.weights = (2.0, 1.0)
    other.makes = [lambda x: x / 2]  # the same numbers, with half of the weight
    x = leaves(1)
    _, mean, _ = sums.mean(1, [2 * y for y in x], HEAD)
    for a, b in zip(mean, x, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_mean_leaves_out_a_node_whose_numbers_are_not_finite(make, bad):
    """The node sends zeros and reports this in its header; its other leaves are summed as usual."""
    sums, other = make()
    other.makes = [lambda x: np.ones_like(x)]
    x = leaves(2)
    x[0][3] = bad
    heads, found, _ = sums.mean_of_finite(1, x, HEAD, count=1)
    assert heads[0, BAD_LEAF] == 1
    other.weights = (0.0, 1.0)
    np.testing.assert_allclose(found[0], 1.0)
    np.testing.assert_allclose(found[1], x[1] + 1, rtol=1e-6)


def test_a_mean_of_finite_numbers_divides_the_first_leaves_only(make):
    sums, _ = make()
    x = leaves(3)
    heads, found, _ = sums.mean_of_finite(1, x, HEAD, count=1)
    assert not heads[:, BAD_LEAF].any()
    np.testing.assert_array_equal(found[0], x[0])
    np.testing.assert_array_equal(found[1], 2 * x[1])
