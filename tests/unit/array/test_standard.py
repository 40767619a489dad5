"""Functions of the array API standard on split arrays, against NumPy, and what they move."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from array_nodes import on_nodes
from nights import rows

import jdaso.array as ja
from jdaso.array import _counting
from jdaso.array._layout import ArrayLayout
from jdaso.array._world import ALONE

RNG = np.random.default_rng(0)
A = RNG.normal(size=(7, 4)).astype(np.float32)
LINE = np.array([3, 1, 3, 0, 1, 1, 7], np.int32)
STRANGE = np.array([np.nan, 1, np.nan, 0.0, -0.0, 1], np.float32)
TURNS = np.array([1 + 2j, 1 - 2j, 0, 1 + 2j], np.complex64)
DIFFERENT = {
    "whole": LINE,
    "strange": STRANGE,
    "complex": TURNS,
    "none": LINE[:0],
    "truths": LINE > 1,
}
NODES = rows((1, 2, 3, 9), day=(3,))
AXES = rows((None, 0, 1), day=(0,))


def check(nodes, function, expected):
    """Checks that all nodes have the expected numbers, of one or several arrays."""

    def run():
        found = function()
        found = list(found) if isinstance(found, tuple | list) else [found]
        return [(x.layout.block_shape(x.world.node), x.block.shape, np.asarray(x)) for x in found]

    expected = list(expected) if isinstance(expected, tuple | list) else [expected]
    for found in on_nodes(nodes, run):
        assert len(found) == len(expected)
        for (told, shape, whole), wanted in zip(found, expected, strict=True):
            assert told == shape and whole.shape == np.shape(wanted)
            np.testing.assert_allclose(whole, wanted, rtol=1e-5, atol=1e-5)


def split(x, axis=0):
    return ja.asarray(x, split=axis)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("axis", AXES)
def test_repeated_and_taken_apart(nodes, axis):
    times = np.array([0, 2, 1, 0, 0, 3, 1])
    check(nodes, lambda: ja.repeat(split(A, axis), times, axis=0), np.repeat(A, times, 0))
    check(nodes, lambda: ja.repeat(split(A, axis), 2), np.repeat(A, 2))
    check(nodes, lambda: ja.tile(split(A, axis), (2, 1, 3)), np.tile(A, (2, 1, 3)))
    check(nodes, lambda: ja.tile(split(A, axis), (2,)), np.tile(A, 2))
    check(nodes, lambda: ja.unstack(split(A, axis)), list(A))
    both = ja.broadcast_arrays
    check(nodes, lambda: both(split(A, axis), ja.asarray(A[:1])), np.broadcast_arrays(A, A[:1]))
    for indexing in ("xy", "ij"):
        grid = np.meshgrid(LINE, A[0], A[1], indexing=indexing)
        lines = (LINE, A[0], A[1])
        check(
            nodes,
            lambda lines=lines, i=indexing: ja.meshgrid(*(split(x) for x in lines), indexing=i),
            grid,
        )


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("width", [2, (0, 3), ((1, 0), (2, 5))])
def test_padded(nodes, axis, width):
    for mode in ("edge", "reflect", "symmetric", "wrap"):
        check(nodes, lambda m=mode: ja.pad(split(A, axis), width, m), np.pad(A, width, mode))
    for value in (0, (1.5, -2), ((1, 2), (3, 4))):
        expected = np.pad(A, width, constant_values=value)
        check(nodes, lambda v=value: ja.pad(split(A, axis), width, constant_values=v), expected)


def test_constants_stay_on_the_nodes_at_the_ends():
    def run():
        empty, few = ja.zeros((0, 2), split=0), split(A)[:2]
        with ja.counted() as count:
            padded = ja.pad(few, ((1, 2), (0, 0))), ja.pad(empty, ((1, 2), (0, 0)))
        return count.calls, [x.counts for x in padded]

    for found in on_nodes(3, run):
        assert found == (0, [(5, 0, 0), (3, 0, 0)])
    assert ja.pad(5.0, 2).shape == ()


@pytest.mark.parametrize(
    ("x", "width", "mode", "words"),
    [(A, -1, "edge", "at least 0"), (A, 1, "mean", "mode"), (A[:0], 1, "edge", "empty axis")],
)
def test_what_cannot_be_padded(x, width, mode, words):
    with pytest.raises(ValueError, match=words):
        ja.pad(x, width, mode)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("axis", AXES)
def test_taken_and_found(nodes, axis):
    check(nodes, lambda: ja.take(split(A, axis), split([6, 0, 6]), axis=0), A[[6, 0, 6]])
    for along in (0, 1):
        order = A.argsort(along)
        expected = np.take_along_axis(A, order, along)

        def pick(to, order=order, along=along):
            return ja.take_along_axis(split(A, axis), ja.asarray(order, split=to), axis=along)

        check(nodes, partial(pick, axis), expected)
        check(nodes, partial(pick, None), expected)
    check(nodes, lambda: ja.nonzero(split(A, axis) > 0), np.nonzero(A > 0))
    check(nodes, lambda: ja.isin(split(A, axis), split(A[0])), np.isin(A, A[0]))
    edges = np.sort(A[:, 0])
    for side in ("left", "right"):
        expected = np.searchsorted(edges, A, side)
        where = lambda s=side: ja.searchsorted(split(edges), split(A, axis), side=s)  # noqa: E731
        check(nodes, where, expected)
        few = lambda s=side: ja.searchsorted(split(edges), ja.asarray(A[0]), side=s)  # noqa: E731
        check(nodes, few, expected[0])


def test_places_lie_as_the_numbers_do():
    """Layouts whose nodes hold unequal numbers of rows, fewer than those searched."""

    def run():
        numbers = split(np.arange(9.0))
        numbers = numbers[numbers > 3]
        found = ja.searchsorted(split(np.arange(64.0)), numbers)
        return found.counts, numbers.counts, np.asarray(found)

    for found, expected, places in on_nodes(3, run):
        assert found == expected == (0, 2, 3)
        np.testing.assert_array_equal(places, [4, 5, 6, 7, 8])


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", rows(DIFFERENT, day=("strange", "complex")))
def test_different_elements_and_their_places(nodes, name):
    line = DIFFERENT[name]
    about = np.unique(
        line, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    check(nodes, lambda: ja.unique_all(split(line)), about)
    check(nodes, lambda: ja.unique_inverse(split(line)), (about[0], about[2]))
    check(nodes, lambda: ja.unique_counts(split(line)), (about[0], about[3]))


def test_running_sums_that_begin_with_nothing():
    expected = np.concatenate([np.zeros((1, 4)), A.cumsum(0)])
    check(3, lambda: ja.cumulative_sum(split(A), axis=0, include_initial=True), expected)
    expected = np.concatenate([np.ones((7, 1)), A.cumprod(1)], 1)
    check(3, lambda: ja.cumulative_prod(split(A), axis=1, include_initial=True), expected)
    joined = np.diff(A, axis=0, prepend=A[-1:], append=A[:1])
    check(3, lambda: ja.diff(split(A), axis=0, prepend=A[-1:], append=split(A[:1])), joined)


@pytest.mark.parametrize(
    ("function", "calls", "sent"),
    [
        (lambda: ja.repeat(split(A), 3, axis=0), 0, 0),
        (lambda: ja.tile(split(A), (1, 5)), 0, 0),
        (lambda: ja.meshgrid(split(LINE), split(A[0])), 0, 0),
        (lambda: ja.take_along_axis(split(A), split(A.argsort(1)), axis=1), 0, 0),
        (lambda: ja.searchsorted(ja.asarray(A[0]), split(A)), 0, 0),
        (lambda: ja.searchsorted(split(np.arange(64.0)), ja.asarray(A[0])), 1, 2 * 4 * 4 * 3),
        (lambda: ja.nonzero(split(A)), 1, 4 * 3 * 8),
    ],
)
def test_what_they_move(function, calls, sent):
    def run():
        with ja.counted() as count:
            function()
        return count.calls, count.bytes_sent

    found = on_nodes(4, run)
    assert max(calls for calls, _ in found) == calls and sum(n for _, n in found) == sent


def test_the_namespace_describes_itself():
    x = ja.ones(3)
    assert x.__array_namespace__(api_version="2024.12") is ja
    with pytest.raises(ValueError, match="no version 2019.01"):
        x.__array_namespace__(api_version="2019.01")
    about = ja.__array_namespace_info__()
    assert about.default_device() in about.devices() and x.device in about.devices()
    assert x.to_device(x.device).device == x.device
    assert set(about.dtypes(kind="real floating")) == {"float32"}
    assert about.default_dtypes()["integral"] == np.int32
    assert ja.finfo(ja.bfloat16).eps == 2**-7 and ja.iinfo(x.astype(ja.int8)).max == 127
    assert ja.isdtype(ja.float32, "numeric") and not ja.can_cast(ja.float32, ja.int8)
    assert ja.result_type(x, ja.bfloat16, 1) == np.float32
    np.testing.assert_array_equal(np.from_dlpack(x), np.ones(3))
    assert ja.from_dlpack(np.ones(3, np.float32), split=0).split == 0
    with pytest.raises(ValueError, match="has to copy"):
        ja.asarray([1, 2], copy=False)


def test_the_split_of_new_arrays_may_come_from_a_variable(monkeypatch):
    monkeypatch.setenv("JDASO_ARRAY_SPLIT", "1")
    made = ja.zeros((2, 3)), ja.asarray(A), ja.eye(2), ja.random.normal(0, (2, 3))
    assert [x.split for x in made] == [1] * 4
    assert ja.arange(3).split is None and ja.zeros((2, 3), split=0).split == 0


NARROW = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "bfloat16", "float16", "int4")


@pytest.mark.parametrize("dtype", rows(NARROW, day=("float8_e4m3fn", "int4")))
def test_extremes_of_narrow_numbers_with_nodes_that_have_none(dtype):
    line = jnp.asarray([3, -2], dtype)
    for found in on_nodes(3, lambda: [f(split(line)) for f in (ja.min, ja.max, ja.argmin)]):
        assert [int(x.block.astype(int)) for x in found] == [-2, 3, 1]
        assert found[0].dtype == dtype


def test_what_has_no_order_or_no_index_is_refused():
    with pytest.raises(TypeError, match="complex numbers have no order"):
        ja.argmax(split(TURNS))

    def counts(block):
        return ja.count_nonzero(ja.Array(block, ArrayLayout(block.shape), ALONE)).block

    many = jax.ShapeDtypeStruct((2**31, 2), np.int8)
    with pytest.raises(ValueError, match="4294967296 elements need indices of 64 bits"):
        jax.eval_shape(counts, many)
    with jax.enable_x64(True):
        assert jax.eval_shape(counts, many).dtype == np.int64


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("exp", complex(np.inf, np.nan), complex(np.inf, np.nan)),
        ("sqrt", complex(np.nan, -np.inf), complex(np.inf, -np.inf)),
        ("log", complex(np.nan, np.inf), complex(np.inf, np.nan)),
        ("atanh", complex(np.inf, np.nan), complex(0, np.nan)),
        ("tanh", complex(0, np.inf), complex(0, np.nan)),
    ],
)
def test_complex_numbers_without_end(name, numbers, expected):
    found = complex(getattr(ja, name)(ja.asarray(numbers)))
    np.testing.assert_array_equal([found.real, found.imag], [expected.real, expected.imag])


def test_quotients_and_remainders_at_infinities_and_zeros():
    x = ja.asarray([np.inf, -1.0, 0.0, -0.0, 7.0])
    y = ja.asarray([2.0, np.inf, -3.0, 3.0, -2.0])
    quotient, rest = np.asarray(x // y), np.asarray(x % y)
    np.testing.assert_array_equal(quotient, [np.inf, -0.0, -0.0, -0.0, -4])
    np.testing.assert_array_equal(np.signbit(quotient), [False, True, True, True, True])
    np.testing.assert_array_equal(np.signbit(rest[1:]), [False, True, False, True])
    assert float(jax.grad(lambda x: (ja.asarray(x) % 3.0).block)(6.0)) == 1.0


def test_a_mask_and_an_index_array_name_pairs():
    rows, columns = np.array([True, False, True, False]), np.array([0, 1])
    check(3, lambda: split(A[:4])[rows, columns], A[:4][rows, columns])


def test_narrow_whole_numbers_are_indices():
    check(3, lambda: ja.take(split(np.arange(200)), np.array([1, -2], np.int8)), np.array([1, 198]))


def test_counts_may_be_nested():
    with ja.counted() as outer:
        with ja.counted() as inner:
            pass
        _counting.note(1, 8)
    assert (outer.calls, inner.calls) == (1, 0)
