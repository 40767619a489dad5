"""Sums and means that a step waits for, on the host; node 0 of two runs here, without MPI."""

import numpy as np
import pytest

from jdaso._engines.base import InTurn, compiled_for_host, sum_part
from jdaso._engines.channel import Channel
from jdaso._engines.sums import Sums
from jdaso._mpi.topology import Topology
from jdaso._nodes.control import Control
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import wire_of
from jdaso._payload.words import BAD_LEAF, HEADER, STATUS, WEIGHT
from jdaso.traces._timeline import Timeline

SHAPES = ((700,), (40, 9))


class Other:
    """Sums node 0's rows with those that the other node makes of them, by default the same."""

    def __init__(self, wire):
        self.wire, self.sum = wire, compiled_for_host(lambda x, w: sum_part(wire, x, w))
        self.weights, self.makes, self.bad = (1.0, 1.0), [], 0

    def __call__(self, rows, out, headed):
        width, residual = out.shape[1], None
        make = self.makes[0] if self.makes else lambda x: x
        for p in range(2):
            mine = rows[p, :width]
            theirs = self.wire.encode(make(self.wire.decode(mine[None])))[0]
            encoded, lost = self.sum(np.stack([mine, theirs]), width)
            out[p] = np.asarray(encoded)
            residual = np.asarray(lost) if p == 0 else residual
        heads = None
        if headed:
            heads = np.repeat(np.ascontiguousarray(rows[:1, width:]).view(np.int32), 2, axis=0)
            heads[:, STATUS], heads[1, BAD_LEAF] = 0, self.bad
            heads[:, WEIGHT] = np.array(self.weights, np.float32).view(np.int32)
            self.makes = self.makes[1:]
        return residual, heads


@pytest.fixture
def make():
    channels = []

    def make(wire="float32"):
        wire = wire_of(wire)
        layout = layout_of([np.zeros(x, np.float32) for x in SHAPES], 2, 4096, wire.block)
        other = Other(wire)
        control = Control(Topology(0, 1, "here"), timeout_seconds=20.0)
        channels.append(Channel(layout, wire, InTurn(other, 20.0), control, Timeline()))
        channels[-1]._nodes = 2
        return Sums(channels[-1], 0), other

    yield make
    for channel in channels:
        channel.close(5.0)


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
    mine = np.zeros(sums.numbers.whole.shape, bool)
    for (a, _), rows in zip(sums.numbers.ranges, sums.numbers.rows, strict=True):
        mine[a : a + rows.shape[1]] = True  # the part that node 0 has summed
    owned = flat(sums.leaves.read(mine))
    error = 2 * flat(x) - flat(total)
    np.testing.assert_allclose(error[~owned], 2 * flat(lost)[~owned], atol=2e-2)
    assert np.abs(error).max() > 1e-3


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
    """It sends zeros, says so in its header, and the rest of its leaves is summed as it is."""
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
