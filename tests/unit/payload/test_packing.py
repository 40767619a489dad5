"""Unpacking undoes packing, whatever the sizes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jdaso
from jdaso._exchange.make import exchange_of
from jdaso._payload import chunks as _chunks
from jdaso._payload import layout as _layout
from jdaso._payload import trees
from jdaso._payload.layout import BLOCK, LEAST_MESSAGE, Layout, chunk_bytes_of, layout_of
from jdaso._payload.trees import rounded, to_leaves

pytestmark = pytest.mark.strict_dtypes

DTYPES = ("float32", "bfloat16", "float16", "complex64", "int32", "bool", "uint8")


def round_trip(layout, leaves):
    return _chunks.unpack(layout, _chunks.pack(layout, leaves))


def numbered(sizes, dtypes=None):
    """A list of arrays, all numbers different where the dtype can distinguish them."""
    dtypes = dtypes or ["float32"] * len(sizes)
    ends = np.cumsum([0, *(int(np.prod(size)) for size in sizes)])
    return [
        (jnp.arange(begin + 1, end + 1) % 200).astype(dtype).reshape(size)
        for begin, end, size, dtype in zip(ends[:-1], ends[1:], sizes, dtypes, strict=True)
    ]


# Few sizes, on both sides of a block's and a row's ends: each new one costs a compilation.
SIZES = st.sampled_from([0, 1, 7, 255, 256, 257, 900])
shapes = st.lists(
    st.one_of(st.just(()), st.tuples(SIZES), st.tuples(st.sampled_from([1, 30]), SIZES)),
    max_size=6,
)


@settings(max_examples=25, deadline=None)
@given(shapes=shapes, nodes=st.integers(1, 5), chunk_bytes=st.sampled_from([1, 1030, 4096, 8000]))
def test_unpack_undoes_pack(shapes, nodes, chunk_bytes):
    tree = numbered(shapes)
    layout = layout_of(tree, nodes, chunk_bytes)
    leaves = trees.to_leaves(tree)
    chunks = _chunks.pack(layout, leaves)
    assert [chunk.shape for chunk in chunks] == [(nodes, width) for width in layout.widths]
    assert all(width % BLOCK == 0 and width > 0 for width in layout.widths)
    back = trees.from_leaves(tree, _chunks.unpack(layout, chunks))
    jax.tree.map(np.testing.assert_array_equal, back, tree)


@settings(max_examples=25, deadline=None)
@given(
    entries=st.lists(st.tuples(SIZES, st.sampled_from(DTYPES)), max_size=7),
    nodes=st.integers(1, 4),
)
def test_every_dtype_comes_back(entries, nodes):
    """Floats and complex numbers travel, everything else is left alone; dtypes and bits stay."""
    tree = numbered([(size,) for size, _ in entries], [dtype for _, dtype in entries])
    layout = layout_of(tree, nodes, 2048)
    assert layout.size == sum(
        size * (2 if dtype == "complex64" else 1)
        for size, dtype in entries
        if "float" in dtype or "complex" in dtype
    )
    back = trees.from_leaves(tree, round_trip(layout, trees.to_leaves(tree)))
    for new, old in zip(back, tree, strict=True):
        assert new.dtype == old.dtype
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(("dtype", "kept"), [("bfloat16", 8), ("float16", 11), ("float32", 24)])
def test_a_sum_of_narrow_numbers_is_rounded_before_it_is_sent(dtype, kept):
    """XLA may widen a sum without rounding it first, as GPUs do; this rounding it has to keep."""
    tree = (jnp.ones(3, dtype),)
    program = jax.jit(lambda x, y: to_leaves((x[0] + y[0],))).lower(tree, tree).as_text()
    assert (f"m{kept - 1}" in program) == ("reduce_precision" in program) == (kept < 24)


def test_values_that_are_left_alone_are_the_same_objects():
    tree = {"float": jnp.ones(3), "int": jnp.arange(3), "key": jax.random.key(0)}
    leaves = trees.to_leaves(tree)
    assert len(leaves) == 1
    back = trees.from_leaves(tree, leaves)
    assert back["int"] is tree["int"] and back["key"] is tree["key"]


def test_three_leaves_of_three_in_chunks_of_four(monkeypatch):
    """A packer that closes a chunk when the next leaf does not fit loses one of these."""
    monkeypatch.setattr(_layout, "BLOCK", 1)
    tree = numbered([(3,), (3,), (3,)])
    layout = Layout(_layout.describe(tree), nodes=1, chunk_size=4)
    assert layout.widths == (4, 4, 1)
    for new, old in zip(round_trip(layout, tuple(tree)), tree, strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_leaf_larger_than_several_chunks(nodes):
    tree = numbered([(5,), (10_000,), (7,)])
    layout = layout_of(tree, nodes, chunk_bytes=4 * 1000)
    assert len(layout.widths) > 5
    for new, old in zip(round_trip(layout, tuple(tree)), tree, strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    "tree", [{}, [], None, {"empty": jnp.zeros((0, 3))}, {"int": jnp.arange(4)}]
)
def test_nothing_to_exchange(tree):
    layout = layout_of(tree, 3, 1024)
    assert layout.size == 0 and len(layout.widths) == 1
    back = trees.from_leaves(tree, round_trip(layout, trees.to_leaves(tree)))
    jax.tree.map(np.testing.assert_array_equal, back, tree)
    assert jax.tree.structure(back) == jax.tree.structure(tree)


def test_what_does_not_fill_a_row_is_zero():
    tree = numbered([(300,)])
    layout = layout_of(tree, 2, 1 << 20)
    (chunk,) = _chunks.pack(layout, tuple(tree))
    np.testing.assert_array_equal(chunk.reshape(-1)[300:], 0)
    np.testing.assert_array_equal(chunk.reshape(-1)[:300], tree[0])


def test_chunks_hold_about_as_many_bytes_as_asked_for():
    for nodes in (1, 2, 3, 7):
        layout = layout_of(numbered([(100_000,)]), nodes, chunk_bytes=64 * 1024)
        full = {4 * nodes * width for width in layout.widths[:-1]}
        assert full and all(64 * 1024 - 4 * nodes * BLOCK < size <= 64 * 1024 for size in full)


def test_padding_is_less_than_one_block_a_node():
    for nodes, size in [(1, 1), (3, 256), (3, 257), (4, 10_000), (2, 512)]:
        layout = layout_of(numbered([(size,)]), nodes, 4096)
        assert 0 <= nodes * sum(layout.widths) - size < nodes * BLOCK


def test_a_layout_distinguishes_trees():
    """`init` compares these between nodes: path, shape and dtype of every leaf."""
    one = layout_of({"a": jnp.ones(3)}, 2, 1024)
    assert one == layout_of({"a": jnp.zeros(3)}, 2, 1024)
    for other in ({"b": jnp.ones(3)}, {"a": jnp.ones((3, 1))}, {"a": jnp.ones(3, "bfloat16")}):
        assert one != layout_of(other, 2, 1024)
    assert one != dataclasses.replace(one, nodes=3)


def test_packing_works_on_tracers():
    tree = numbered([(300,), (5, 7)])
    layout = layout_of(tree, 2, 1024)
    back = jax.jit(lambda leaves: round_trip(layout, leaves))(tuple(tree))
    for new, old in zip(back, tree, strict=True):
        np.testing.assert_array_equal(new, old)


@given(
    total=st.integers(0, 2**40),
    nodes=st.integers(1, 4096),
    most=st.integers(1, 2**31),
)
def test_chunks_are_few_but_enough_to_overlap(total, nodes, most):
    each = chunk_bytes_of(total, nodes, most)
    assert 1 <= each <= most
    if each < most:  # messages are large enough, and there are no more than four chunks
        assert each >= nodes * LEAST_MESSAGE and 4 * each >= total
    if total >= 4 * nodes * LEAST_MESSAGE:
        assert -(-total // each) >= 4


def test_exchanges_are_cut_so():
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        cut = lambda size, **most: len(  # noqa: E731
            exchange_of([jnp.zeros(size)], session, **most).layout.widths
        )
        assert cut(2**20) == 4 and cut(2**10) == 1 and cut(2**20, chunk_bytes=2**19) == 8


def test_the_leaf_of_every_number_of_a_chunk():
    """Errors name the leaf of the first number that is not finite."""
    shapes = (300, 5, 2000, 1)
    layout = layout_of([jnp.zeros(shape) for shape in shapes], 2, 2048)
    leaves = np.repeat(np.arange(len(shapes)), shapes)
    found, begin = [], 0
    for chunk, width in enumerate(layout.widths):
        size = min(2 * width, leaves.size - begin)
        found += [layout.leaf_at(chunk, index) for index in range(size)]
        begin += 2 * width
    assert len(layout.widths) > 2 and found == leaves.tolist()


def test_numbers_of_16_bits_stay_what_they_are():
    """All of float16, the subnormal ones too, and float32 that it rounds."""
    words = jnp.arange(2**16, dtype=jnp.uint16)
    for dtype in (jnp.float16, jnp.bfloat16):
        every = jax.lax.bitcast_convert_type(words, dtype)
        every = every[jnp.isfinite(every)]
        (found,) = jax.jit(to_leaves)(every)
        exact = np.asarray(every).astype(np.float32)
        np.testing.assert_array_equal(found, exact)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(exact))
    wide = np.random.default_rng(0).normal(size=10**4) * 10.0 ** np.arange(-9, 1).repeat(1000)
    wide = wide.astype(np.float32)
    np.testing.assert_array_equal(
        jax.jit(lambda x: rounded(x, jnp.float16))(wide), wide.astype(np.float16)
    )
