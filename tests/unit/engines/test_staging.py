"""Values written to the rows that are sent are those read from the rows that come back."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdaso._engines.staging import Staging
from jdaso._payload.layout import Layout, layout_of
from jdaso._payload.wire import WIRES, Wire

sizes = st.lists(st.one_of(st.integers(0, 900), st.integers(2000, 9000)), max_size=6)


def parts_of(wire: Wire, leaf: np.ndarray) -> list[np.ndarray]:
    """Does the same as `Wire.encode_leaf`, without compiling for each size."""
    row = wire.encode(np.pad(leaf, (0, -leaf.size % wire.block)).reshape(1, -1))[0]
    if len(wire.parts) == 1:
        return [row]
    (_, per_byte), (scales, block) = wire.parts
    size = -(-leaf.size // block) * block // per_byte
    return [row[:size], row[size:].view(scales)]


def staging_of(sizes: list[int], nodes: int, chunk_bytes: int, wire: Wire):
    tree = [np.linspace(-1 - i, 2, size, dtype=np.float32) for i, size in enumerate(sizes)]
    layout = layout_of(tree, nodes, chunk_bytes, wire.block)
    return Staging(layout, wire), layout, [leaf for leaf in tree if leaf.size]


def write_all(staging: Staging, layout: Layout, wire: Wire, leaves) -> None:
    for s, segment in enumerate(layout.segments):
        arrays = [x for leaf in leaves[segment.first : segment.last] for x in parts_of(wire, leaf)]
        list(staging.write_segment(s, arrays))


def travel(staging: Staging) -> None:
    """An exchange in which nothing is summed: the rows come back as they were sent."""
    for sent, back in zip(staging.rows, staging.places[0].rows, strict=True):
        back[:] = sent[:, : back.shape[1]]


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
@settings(max_examples=25, deadline=None)
@given(sizes=sizes, nodes=st.integers(1, 5), chunk_bytes=st.integers(1, 20_000))
def test_reading_undoes_writing(wire, sizes, nodes, chunk_bytes):
    staging, layout, leaves = staging_of(sizes, nodes, chunk_bytes, wire)
    write_all(staging, layout, wire, leaves)
    travel(staging)
    for s, segment in enumerate(layout.segments):
        vectors = staging.read(s, staging.places[0])
        for leaf in range(segment.first, segment.last):
            low, high = (x - segment.begin for x in layout.offsets[leaf : leaf + 2])
            cut = [
                vector[low // each : high // each]
                for vector, (_, each) in zip(vectors, wire.parts, strict=True)
            ]
            for x, y in zip(cut, parts_of(wire, leaves[leaf]), strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
@settings(max_examples=25, deadline=None)
@given(sizes=sizes, nodes=st.integers(1, 5), chunk_bytes=st.integers(1, 20_000))
def test_rows_are_those_of_the_packed_leaves(wire, sizes, nodes, chunk_bytes):
    """Late exchanges, leaf by leaf, send what a blocking one of the whole vector would."""
    staging, layout, leaves = staging_of(sizes, nodes, chunk_bytes, wire)
    write_all(staging, layout, wire, leaves)
    aligned = [np.pad(leaf, (0, -leaf.size % layout.align)) for leaf in leaves]
    vector = np.zeros(nodes * sum(layout.widths), np.float32)
    joined = np.concatenate([np.zeros(0, np.float32), *aligned])
    vector[: joined.size] = joined
    begin = 0
    for width, rows in zip(layout.widths, staging.rows, strict=True):
        part = vector[begin : begin + nodes * width].reshape(nodes, width)
        np.testing.assert_array_equal(rows[:, : wire.encoded_width(width)], wire.encode(part))
        begin += nodes * width


@settings(max_examples=25, deadline=None)
@given(sizes=sizes, nodes=st.integers(1, 5), chunk_bytes=st.integers(1, 20_000))
def test_a_chunk_is_complete_once_all_segments_have_given_it(sizes, nodes, chunk_bytes):
    """Sooner than its segments, where a leaf is larger than a chunk; it may be sent then."""
    wire = WIRES["int4"]
    staging, layout, leaves = staging_of(sizes, nodes, chunk_bytes, wire)
    whole, *_ = staging_of(sizes, nodes, chunk_bytes, wire)
    write_all(whole, layout, wire, leaves)
    missing = Counter(k for segment in layout.segments for k in staging.chunks_of(segment))
    for s, segment in enumerate(layout.segments):
        arrays = [x for leaf in leaves[segment.first : segment.last] for x in parts_of(wire, leaf)]
        for k in staging.write_segment(s, arrays):
            missing[k] -= 1
            if missing[k] == 0:
                np.testing.assert_array_equal(staging.rows[k], whole.rows[k])
    assert not any(missing.values())


@settings(max_examples=25, deadline=None)
@given(sizes=sizes, nodes=st.integers(1, 5), chunk_bytes=st.integers(1, 20_000))
def test_segments_cover_all_leaves_and_all_chunks(sizes, nodes, chunk_bytes):
    staging, layout, _ = staging_of(sizes, nodes, chunk_bytes, WIRES["int8"])
    ends = [(segment.first, segment.last) for segment in layout.segments]
    assert [x for ends_ in ends for x in range(*ends_)] == list(range(len(layout.exchanged)))
    covered = {k for segment in layout.segments for k in staging.chunks_of(segment)}
    assert covered == set(range(len(layout.widths)))
    for segment in layout.segments:
        begins = np.cumsum([0, *layout.widths]) * nodes
        for k in staging.chunks_of(segment):
            assert begins[k] <= segment.end and segment.begin <= begins[k + 1]


def test_without_a_place_there_are_zeros():
    wire = WIRES["int4"]
    staging, layout, _ = staging_of([700, 30], 2, 4096, wire)
    numbers, scales = staging.read(0, None)
    assert numbers.size == layout.segments[0].end // 2
    assert scales.size == layout.segments[0].end // wire.block and scales.dtype == np.uint16
    assert not numbers.any() and not scales.any()


def test_memory_is_twice_what_is_sent_and_the_header():
    wire = WIRES["bfloat16"]
    staging, layout, _ = staging_of([5000, 5000], 2, 4096, wire)
    sent = 2 * 2 * sum(layout.widths)
    assert staging.nbytes == 2 * sent + 2 * 2 * wire.header_width
    staging.add_place()
    assert staging.nbytes == 3 * sent + 2 * 2 * wire.header_width


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_rows_of_a_blocking_mean_are_sent_as_they_were_given(wire):
    """Row p is for node p."""
    staging, layout, _ = staging_of([700, 30], 3, 4096, wire)
    for k, width in enumerate(layout.widths):
        numbers = np.random.default_rng(k).normal(size=(3, width)).astype(np.float32)
        rows = wire.encode(numbers)
        assert list(staging.write_chunk(k, rows)) == [k]
        np.testing.assert_array_equal(staging.rows[k][:, : rows.shape[1]], rows)
