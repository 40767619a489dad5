"""Passes over a chunk, by the library and without it, against NumPy's formulas in float32.

The verbs of a wire on NumPy arrays give the expected numbers (`payload/test_wire.py`).
"""

import itertools

import numpy as np
import pytest

from jdaso._engines.passes import Compiled, Fused, Owed, passes_of
from jdaso._jax.ffi import library
from jdaso._payload.wire import WIRES, sum_rows
from jdaso._payload.wire.int8 import Int8

NODES, WIDTH, HEADER, NODE = 3, 1280, 48, 1
ONE, HALF, SHARE = np.float32(1), np.float32(0.5), np.float32(0.3)
WAYS = (Fused, Compiled)
EITHER = pytest.mark.parametrize("way", WAYS)
EVERY_WIRE = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
NARROW = [wire for wire in WIRES.values() if wire.narrow]


@pytest.fixture(autouse=True)
def _library():
    if not library.has_fused("float32"):
        pytest.skip("there is no library here")


def numbers(seed, scale=1.0, shape=(NODES, WIDTH)):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def room(wire):
    """Rows with a header of ones behind them."""
    width = wire.encoded_width(WIDTH)
    return np.ones((NODES, width + HEADER), wire.dtype), width


OWED = {
    "none": None,
    "of the wire": Owed(numbers(2, 1e-3), None, None, np.int32(NODE), ONE, np.float32(0)),
    "of the sum": Owed(
        numbers(2, 1e-3), None, numbers(3, 1e-3, (WIDTH,)), np.int32(NODE), ONE, np.float32(0)
    ),
    "of a share": Owed(
        numbers(2, 1e-3), numbers(4, 1e-3), numbers(3, 1e-3, (WIDTH,)), np.int32(NODE), SHARE, HALF
    ),
}
ENCODED = list(itertools.product(["none", "anchor"], [None, SHARE], OWED))


@EITHER
@EVERY_WIRE
@pytest.mark.parametrize(("anchor", "weight", "owed"), ENCODED)
def test_numbers_are_encoded_with_what_is_owed(way, wire, anchor, weight, owed):
    own, point, owed = numbers(0), numbers(1) if anchor == "anchor" else None, OWED[owed]
    rows, width = room(wire)
    error, fed = way(wire).encode(own, rows, point, weight, owed, keeps=True)

    send, feedback = own if point is None else own - point, np.zeros_like(own)
    if weight is not None:
        send = weight * send
    if owed is not None:
        feedback = owed.error.copy()
        if owed.residual is not None:
            feedback[NODE] += owed.residual
        feedback = owed.sent * feedback
        if owed.paid is not None:
            feedback = feedback + owed.kept * owed.paid
        send = send + feedback
    expected = wire.encode(send)
    assert (rows[:, width:] == 1).all()
    if way is Fused:  # JAX may fuse a product and a sum, and round once
        np.testing.assert_array_equal(fed, feedback)
        np.testing.assert_array_equal(rows[:, :width], expected)
        lost = send - wire.decode(expected) if wire.narrow else None
        np.testing.assert_array_equal(error, lost)
    np.testing.assert_allclose(fed, feedback, rtol=1e-6, atol=1e-9)
    arrived = wire.decode(np.ascontiguousarray(rows[:, :width]))
    np.testing.assert_allclose(arrived, wire.decode(expected), rtol=1e-2, atol=0.2)
    if wire.narrow:
        np.testing.assert_allclose(arrived + error, send, rtol=1e-5, atol=1e-6)
    else:
        assert error is None


@EITHER
@EVERY_WIRE
def test_a_weight_of_zero_sends_zeros(way, wire):
    own = numbers(0)
    own[1, 7] = np.nan
    rows, width = room(wire)
    way(wire).encode(own, rows, numbers(1), np.float32(0), None)
    sent = np.ascontiguousarray(rows[:, :width])
    np.testing.assert_array_equal(wire.decode(sent), np.zeros_like(own))


@EITHER
@EVERY_WIRE
def test_a_single_row_among_others_is_encoded(way, wire):
    rows, width = room(wire)
    rows[:] = 0
    way(wire).encode(numbers(0)[:1], rows[1][None])
    np.testing.assert_array_equal(rows[1, :width], wire.encode(numbers(0)[0]))
    assert not rows[[0, 2]].any() and not rows[1, width:].any()


@EITHER
@EVERY_WIRE
def test_sums_are_those_of_the_rows_in_order(way, wire):
    rows, width = room(wire)
    rows[:, :width] = wire.encode(numbers(5))
    encoded = np.zeros(width, wire.dtype)
    residual = way(wire).total(rows, encoded)
    total = np.array(sum_rows(wire, rows[:, :width]))
    assert residual.dtype == np.float32
    if not wire.narrow:
        np.testing.assert_array_equal(encoded, total)
        assert not residual.size
        return
    if way is Fused:
        np.testing.assert_array_equal(encoded, wire.encode(total[None])[0])
    arrived = wire.decode(np.array(encoded)[None])[0]
    np.testing.assert_allclose(arrived + residual, total, rtol=1e-5, atol=1e-6)


@EVERY_WIRE
@pytest.mark.parametrize("factor", [ONE, SHARE])
@pytest.mark.parametrize("into", ["nothing", "mean", "difference"])
def test_means_have_the_same_bits_on_all_hosts(wire, factor, into):
    """Means agree with and without a compiler: nodes compare checksums of their results."""
    sums, nodes = wire.encode(numbers(6)), np.float32(NODES)
    anchor = numbers(7) if wire.narrow else None
    expected = factor * wire.decode(sums)
    if anchor is not None:
        expected = expected + nodes * anchor
    expected = expected * (ONE / nodes)
    for way in WAYS:
        own = numbers(8)
        taken = None if into == "nothing" else own
        about, found = {"subtracts": into == "difference"}, np.empty_like(own)
        way(wire).mean(sums, anchor, factor, into=found, numbers=taken, **about)
        np.testing.assert_array_equal(found, expected)
        if into != "nothing":
            np.testing.assert_array_equal(
                own, expected - numbers(8) if about["subtracts"] else expected
            )
        if not wire.narrow:
            rows = sums.copy()
            way(wire).mean(rows, None, factor, into=rows)
            np.testing.assert_array_equal(rows, expected)


@EITHER
@EVERY_WIRE
def test_rows_are_decoded(way, wire):
    rows, found = wire.encode(numbers(9)), np.empty((NODES, WIDTH), np.float32)
    way(wire).decode(rows, found)
    np.testing.assert_array_equal(found, wire.decode(rows))
    way(wire).decode(np.broadcast_to(rows[0], rows.shape), found)
    np.testing.assert_array_equal(found, np.repeat(wire.decode(rows[:1]), NODES, axis=0))


@EITHER
@pytest.mark.parametrize("wire", NARROW, ids=lambda wire: wire.name)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 700, NODES * WIDTH - 1])
def test_a_number_that_is_not_finite_is_found_on_the_wire(way, wire, bad, at):
    own = numbers(0)
    own.reshape(-1)[at] = bad
    rows, width = room(wire)
    way(wire).encode(own, rows)
    assert wire.first_bad(rows[:, :width]) == at // wire.block * wire.block


@EITHER
@pytest.mark.parametrize("wire", NARROW, ids=lambda wire: wire.name)
def test_the_largest_and_the_smallest_numbers(way, wire):
    own = np.zeros((NODES, WIDTH), np.float32)
    own[0, :3] = 3.0e38, -3.0e38, 1.0
    own[1, 0] = 1e-37
    rows, width = room(wire)
    error, _ = way(wire).encode(own, rows)
    arrived = wire.decode(np.ascontiguousarray(rows[:, :width]))
    assert np.isfinite(arrived).all()
    least_normal = np.finfo(np.float32).tiny  # JAX puts 0 for what is smaller
    np.testing.assert_allclose(arrived + error, own, rtol=1e-6, atol=least_normal)


def test_wires_with_loops_of_the_library(monkeypatch):
    class Own(Int8):
        levels = 63

    assert {type(passes_of(wire)) for wire in WIRES.values()} == {Fused}
    assert type(passes_of(Own())) is Compiled
    monkeypatch.setenv("JDASO_FFI", "off")
    assert type(passes_of(WIRES["int8"])) is Compiled


def test_arrays_that_the_library_would_misread_are_refused():
    wire = WIRES["bfloat16"]
    rows, _ = room(wire)
    with pytest.raises(ValueError, match="one piece"):
        Fused(wire).encode(numbers(0, shape=(NODES, 2 * WIDTH))[:, ::2], rows)
    with pytest.raises(TypeError, match="got float64"):
        Fused(wire).encode(numbers(0), rows, numbers(1).astype(np.float64))
    with pytest.raises(ValueError, match="side by side"):
        Fused(wire).encode(numbers(0), np.zeros((NODES, 2 * WIDTH), wire.dtype)[:, ::2])
