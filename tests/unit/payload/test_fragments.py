"""Fragments: every number in exactly one, about equal sizes, leaves cut only where they must be."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdaso._payload.fragments import deal
from jdaso._payload.layout import describe
from jdaso._payload.trees import to_leaves

# Few lengths: each new shape costs a compilation.
LENGTHS = st.sampled_from([1, 2, 7, 24, 37, 40])
SHAPES = st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=8)


def numbered(shapes, dtype=jnp.float32):
    """Leaves of these shapes; all numbers differ."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    starts = [0, *ends[:-1]]
    return [
        jnp.arange(a, b, dtype=jnp.float32).reshape(shape).astype(dtype)
        for a, b, shape in zip(starts, ends, shapes, strict=True)
    ]


@given(SHAPES, st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_every_number_is_in_one_fragment_and_comes_back(shapes, count):
    leaves = numbered(shapes)
    total = sum(x.size for x in leaves)
    try:
        fragments = deal(describe(leaves), count)
    except ValueError as error:
        assert total < 4000 * count, f"refused without need: {error}"
        return
    taken = [fragment.take(leaves) for fragment in fragments]
    for fragment, pieces in zip(fragments, taken, strict=True):
        assert [tuple(x.shape) for x in pieces] == [leaf.shape for leaf in fragment.leaves]
    sizes = [sum(x.size for x in pieces) for pieces in taken]
    assert max(sizes) <= 1.05 * min(sizes)
    numbers = np.sort(np.concatenate([np.ravel(x) for pieces in taken for x in pieces]))
    np.testing.assert_array_equal(numbers, np.arange(total))
    back = tuple(jnp.zeros_like(x) for x in leaves)
    for fragment, pieces in zip(fragments, taken, strict=True):
        back = fragment.put(back, pieces)
    for x, y in zip(back, leaves, strict=True):
        np.testing.assert_array_equal(x, y)


def test_numbers_without_axes_stay_whole():
    leaves = [jnp.float32(k) for k in range(62)]
    fragments = deal(describe(leaves), 3)
    assert [len(fragment.pieces) for fragment in fragments] == [20, 21, 21]
    np.testing.assert_array_equal([x for one in fragments for x in one.take(leaves)], range(62))


def test_leaves_stay_whole_where_they_can():
    leaves = describe({"a": jnp.zeros((100, 9)), "b": jnp.zeros(905), "n": jnp.zeros(3, jnp.int32)})
    first, second = deal(leaves, 2)
    assert [str(leaf.path) for leaf in (*first.leaves, *second.leaves)] == ["['a']", "['b']"]


def test_a_large_leaf_is_cut_along_its_longest_axis():
    leaf = jnp.arange(600.0).reshape(3, 200)
    fragments = deal(describe({"w": leaf}), 4)
    assert [x.leaves[0].path for x in fragments][1] == "['w'][:, 50:100]"
    np.testing.assert_array_equal(fragments[1].take([leaf])[0], leaf[:, 50:100])


def test_complex_leaves_and_leaves_of_half_width():
    tree = {"c": jnp.ones((8, 2), jnp.complex64), "h": jnp.ones((4, 8), jnp.bfloat16)}
    fragments = deal(describe(tree), 2)
    assert [sum(leaf.size for leaf in x.leaves) for x in fragments] == [32, 32]
    (piece,) = fragments[0].take(to_leaves(tree))
    assert piece.shape == (8, 2, 2)
    fragments = deal(describe(tree), 4)
    assert fragments[0].take(to_leaves(tree))[0].shape == (4, 2, 2)
    assert [leaf.dtype for leaf in fragments[3].leaves] == ["bfloat16"]


def test_too_many_fragments_are_refused():
    with pytest.raises(ValueError, match=r"1 leaves of 3 numbers cannot .* fragments=4"):
        deal(describe([jnp.zeros(3)]), 4)
    assert len(deal(describe([jnp.zeros(0)]), 1)) == 1
