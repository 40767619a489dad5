"""Leaves in a place of numbers, and the memory of a channel."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdaso._engines.base import heads_of
from jdaso._engines.staging import Leaves, Places, Staging
from jdaso._payload.chunks import pack
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import WIRES
from jdaso._payload.words import HEADER

sizes = st.lists(st.one_of(st.integers(0, 900), st.integers(2000, 9000)), max_size=6)
aligns = st.sampled_from([1, 64, 256])


def leaves_of(sizes):
    return [np.linspace(-1 - i, 2, size, dtype=np.float32) for i, size in enumerate(sizes)]


def places_of(layout):
    return Places(layout, WIRES["float32"])


@settings(max_examples=25, deadline=None)
@given(sizes=sizes, nodes=st.integers(1, 5), chunk_bytes=st.integers(1, 20_000), align=aligns)
def test_the_rows_are_those_of_the_packed_leaves(sizes, nodes, chunk_bytes, align):
    """A late exchange sends what a blocking one of the whole vector would, and reads it back."""
    layout = layout_of(leaves_of(sizes), nodes, chunk_bytes, align)
    arrays, place = [x for x in leaves_of(sizes) if x.size], places_of(layout).free()
    leaves = Leaves(layout)
    assert list(leaves.write(arrays, place)) == list(range(len(layout.widths)))
    for rows, packed in zip(place.rows, pack(layout, tuple(map(jnp.asarray, arrays))), strict=True):
        np.testing.assert_array_equal(rows, packed)
    for found, array in zip(leaves.read(place.whole), arrays, strict=True):
        np.testing.assert_array_equal(found, array)


@settings(max_examples=25, deadline=None)
@given(sizes=sizes, nodes=st.integers(1, 5), chunk_bytes=st.integers(1, 20_000))
def test_a_chunk_is_complete_once_it_is_yielded(sizes, nodes, chunk_bytes):
    """A chunk may be sent then, while the rest is still being copied."""
    layout = layout_of(leaves_of(sizes), nodes, chunk_bytes)
    arrays = [x for x in leaves_of(sizes) if x.size]
    place, whole = places_of(layout).free(), places_of(layout).free()
    list(Leaves(layout).write(arrays, whole))
    for k in Leaves(layout).write(arrays, place):
        np.testing.assert_array_equal(place.rows[k], whole.rows[k])


DTYPES = (np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64)


@pytest.mark.parametrize("dtype", [*DTYPES, np.complex128], ids=lambda x: np.dtype(x).name)
def test_each_dtype_becomes_float32_numbers(dtype):
    values = np.array([[1.5, -2], [0.25, 3]]).astype(dtype)
    if np.iscomplexobj(values):
        values = values + 1j * values[::-1]
    with jax.enable_x64():
        layout = layout_of([values], 2, 4096)
    place = places_of(layout).free()
    list(Leaves(layout).write([values], place))
    (found,) = Leaves(layout).read(place.whole)
    if np.iscomplexobj(values):
        found = found[..., 0] + 1j * found[..., 1]
    np.testing.assert_array_equal(found, values)


def test_each_exchange_has_rows_of_its_own_that_end_in_a_header():
    wire = WIRES["bfloat16"]
    layout = layout_of(leaves_of([5000, 5000]), 2, 4096, wire.block)
    staging = Staging(layout, wire)
    number = len(layout.widths) - 1
    first, second = staging.rows(), staging.rows()
    last = first(number)
    assert last.shape == (2, layout.widths[-1] + wire.header_width) and last is first(number)
    assert first(0).shape == (2, layout.widths[0])
    assert sum(staging.sizes) == 2 * 2 * (sum(layout.widths) + wire.header_width)
    first.set_header(np.arange(HEADER, dtype=np.int32))
    second.set_header(np.ones(HEADER, np.int32))
    np.testing.assert_array_equal(first.header(), np.arange(HEADER))
    np.testing.assert_array_equal(heads_of(wire, last), [np.arange(HEADER)] * 2)


def test_each_exchange_has_places_of_its_own():
    wire = WIRES["int8"]
    staging = Staging(layout_of(leaves_of([5000, 5000]), 2, 4096, wire.block), wire)
    for make, dtype in ((staging.numbers, np.float32), (staging.sums, wire.dtype)):
        first, second = make(), make()
        assert first.whole.dtype == dtype and not np.shares_memory(first.whole, second.whole)


def test_a_place_that_is_held_is_not_given_away():
    places = places_of(layout_of(leaves_of([50]), 2, 4096))
    first = places.free()
    first.hold()
    second = places.free()
    assert second is not first
    first.release()
    assert places.free() is first and len(places.all) == 2


def test_gaps_between_leaves_are_cleared():
    """A NaN that a block of a narrow wire left there must not be sent with the next numbers."""
    layout = layout_of(leaves_of([70, 30]), 2, 4096, 64)
    place, leaves = places_of(layout).free(), Leaves(layout)
    place.whole[:] = np.nan
    leaves.clear_gaps(place.whole)
    list(leaves.write(leaves_of([70, 30]), place))
    assert np.isfinite(place.whole).all() and place.whole[70:128].sum() == 0
