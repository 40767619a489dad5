"""Numbers at the edges of types, as NumPy has them; operations that move as little as promised."""

import jax
import numpy as np
import pytest
from array_nodes import on_nodes

import jdaso.array as ja

NARROW = np.array([3, 100, 7, 100, 5], np.int8)


def test_python_integers_that_do_not_fit_are_refused():
    for make in (
        lambda: ja.full((3,), 3_000_000_000),
        lambda: ja.full((2,), 300, dtype=ja.uint8),
        lambda: ja.full_like(ja.zeros(2, dtype=ja.uint8), -1),
        lambda: ja.zeros(2, dtype=ja.uint8).at[0].set(300),
        lambda: ja.zeros(2, dtype=ja.int32).at[0].add(2**40),
    ):
        with pytest.raises(OverflowError, match=r"does not fit u?int"):
            make()
    np.testing.assert_array_equal(ja.full((2,), 255, dtype=ja.uint8), [255, 255])
    np.testing.assert_array_equal(ja.full((2,), 2**40, dtype=ja.float32), np.float32([2**40] * 2))


def test_large_python_integers_beside_fractions():
    x = np.array([1.5, -2e12, np.inf], np.float32)
    for function in (
        lambda x: x * 3_000_000_000,
        lambda x: x - 2**40,
        lambda x: x < 2**40,
        lambda x: x >= -(10**400) if isinstance(x, ja.Array) else np.ones(3, bool),
    ):
        np.testing.assert_allclose(function(ja.asarray(x)), function(x), rtol=1e-6)
    np.testing.assert_allclose(ja.clip(ja.asarray(x), 0, 2**40), np.clip(x, 0, 2**40), rtol=1e-6)
    assert float(ja.zeros(2).at[0].set(2**40)[0]) == 2**40


@pytest.mark.parametrize("decimals", [-1, -3, -40, 0, 1])
def test_round(decimals):
    x = np.array([2000.0, 123456.0, -1450.0, 25.0, np.nan, np.inf], np.float32)
    wanted = np.round(x.astype(float), decimals).astype(np.float32)
    np.testing.assert_array_equal(ja.round(ja.asarray(x), decimals), wanted)


@pytest.mark.parametrize("nodes", [1, 2])
def test_sums_of_weights_do_not_stop_growing(nodes):
    """They are added up in float64, as NumPy's: 1 raises no float32 of 2^24."""
    x, ones = np.zeros(2**24 + 4, np.int8), np.ones(2**24 + 4, np.float32)
    x[-1] = 9
    small = np.full(len(x), 0.1, np.float32)

    def found():
        a, w, v = (ja.asarray(one, split=0) for one in (x, ones, small))
        counted = ja.bincount(a, w)
        tenths = ja.histogram(a, 10, weights=v)[0]
        edges = ja.histogram(a, np.array([0.0, 0.5, 9.5]), weights=v)[0]
        return [np.asarray(one) for one in (counted, tenths, edges)]

    for counted, tenths, edges in on_nodes(nodes, found):
        np.testing.assert_array_equal(counted[[0, 9]], np.float32([2**24 + 3, 1]))
        np.testing.assert_allclose(tenths[[0, 9]], [(2**24 + 3) * 0.1, 0.1], rtol=1e-6)
        np.testing.assert_allclose(edges, [(2**24 + 3) * 0.1, 0.1], rtol=1e-6)


def test_64_bits_that_jax_does_not_have(tmp_path):
    large = np.array([2**40, 1])
    np.save(tmp_path / "x.npy", large)
    np.save(tmp_path / "one.npy", large[0])
    for make in (
        lambda: ja.arange(2**31, 2**31 + 3, dtype=ja.int64),
        lambda: ja.asarray(large, dtype=ja.int64),
        lambda: ja.load(tmp_path / "x.npy", dtype="int64"),
        lambda: ja.load(tmp_path / "one.npy"),
    ):
        with pytest.raises(ValueError, match="do not fit int32"):
            make()
    np.testing.assert_array_equal(ja.arange(3, dtype=ja.int64), [0, 1, 2])
    np.testing.assert_array_equal(ja.asarray(large, dtype=ja.int8), large.astype(np.int8))


@pytest.mark.parametrize("nodes", [1, 3])
def test_trace_takes_the_first_axes_as_numpy(nodes):
    x = np.arange(36.0, dtype=np.float32).reshape(3, 4, 3)
    for about in ({}, {"axis1": 0, "axis2": 2}, {"offset": 1}):
        for found in on_nodes(
            nodes, lambda a=about: np.asarray(ja.trace(ja.asarray(x, split=0), **a))
        ):
            np.testing.assert_array_equal(found, np.trace(x, **about))


def test_conjugate_gradients_of_whole_numbers():
    found = ja.linalg.cg(ja.asarray([[2, 0], [0, 2]]), ja.asarray([100000, 100000]))
    np.testing.assert_allclose(found, [50000, 50000], rtol=1e-6)


@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        (NARROW, np.int32(2)),
        (NARROW, np.array([2, 3, 0, 1, 9], np.int32)),
        (np.array([2, 3, 1, -1], np.int32), np.array([64, 70, 99, 127], np.int32)),
        (np.array([2, 3], np.uint8), np.uint8(200)),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_powers_of_whole_numbers(base, exponent, compiled):
    power = jax.jit(ja.pow) if compiled else ja.pow
    found = power(ja.asarray(base), ja.asarray(exponent))
    wanted = np.power(base, exponent)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_places_that_are_close_to_each_other():
    known, values = np.array([0, 1e-15, 3e-15], np.float32), np.array([0.0, 1.0, -1.0], np.float32)
    at = np.array([5e-16, 2e-15, 1.0], np.float32)
    np.testing.assert_allclose(ja.interp(at, known, values), [0.5, 0.0, -1.0], atol=1e-6)
    np.testing.assert_allclose(
        ja.interp(at + 6e-15, known, values, period=6e-15)[:1], [0.5], atol=1e-5
    )


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("sizes", [(1000, 40), (12, 900)])
def test_membership_moves_the_smaller(nodes, invert, sizes):
    random = np.random.default_rng(0)
    x, y = (random.integers(0, 500, size).astype(np.int32) for size in sizes)

    def found():
        a, b = ja.asarray(x, split=0), ja.asarray(y, split=0)
        with ja.counted() as count:
            flags = ja.isin(a, b, invert=invert)
        return np.asarray(flags), count.bytes_sent

    for flags, moved in on_nodes(nodes, found):
        np.testing.assert_array_equal(flags, np.isin(x, y, invert=invert))
        assert moved <= 4 * 4 * min(sizes) * nodes


@pytest.mark.parametrize("nodes", [1, 3])
def test_products_over_all_axes_move_one_number(nodes):
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(9, 4)).astype(np.float32) for _ in range(2))

    def found():
        a, b = (ja.asarray(one, split=0) for one in (x, y))
        with ja.counted() as count:
            both = ja.tensordot(a, b), ja.inner(a[:, 0], b[:, 0])
        turned = ja.tensordot(a, ja.asarray(y.T, split=1), axes=([0, 1], [1, 0]))
        return [float(one) for one in (*both, turned)], count.bytes_sent

    for (whole, line, turned), moved in on_nodes(nodes, found):
        assert whole == pytest.approx(np.tensordot(x, y), rel=1e-5)
        assert line == pytest.approx(np.inner(x[:, 0], y[:, 0]), rel=1e-5)
        assert turned == pytest.approx(whole, rel=1e-5)
        assert moved <= 4 * 4 * nodes


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("split", [0, 1])
def test_the_place_of_an_extreme_in_the_flat_array(nodes, split):
    random = np.random.default_rng(3)
    numbers = [random.integers(0, 4, (7, 5)), np.where(random.random((7, 5)) < 0.2, np.nan, 1.0)]
    for x in numbers:
        x = x.astype(np.float32)

        def found(x=x):
            a = ja.asarray(x, split=split)
            with ja.counted() as count:
                both = [int(f(a)) for f in (ja.argmin, ja.argmax)]
            return both, ja.argmax(a, keepdims=True).shape, count.bytes_sent

        for both, shape, moved in on_nodes(nodes, found):
            assert both == [np.argmin(x), np.argmax(x)]
            assert shape == (1, 1) and moved <= 16 * nodes
    assert int(jax.jit(ja.argmax)(ja.asarray(x))) == np.argmax(x)


def test_covariances_of_one_variable_have_no_axes():
    x = np.arange(5.0, dtype=np.float32)[None]
    for function, reference in ((ja.cov, np.cov), (ja.corrcoef, np.corrcoef)):
        for one, about in ((x, {}), (x.T, {"rowvar": False})):
            found = function(ja.asarray(one), **about)
            assert found.shape == reference(one, **about).shape == ()
            np.testing.assert_allclose(found, reference(one, **about), rtol=1e-6)


def test_arrays_of_numpy_are_saved(tmp_path):
    ja.save(np.arange(3.0), tmp_path / "x.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), [0, 1, 2])


def test_fractions_are_no_numbers_of_rows():
    for make in (
        lambda: ja.repeat(ja.ones(3), 2.7),
        lambda: ja.zeros(2.7),
        lambda: ja.ones((2, 1.5)),
    ):
        with pytest.raises(TypeError):
            make()


def test_whole_numbers_divided_by_0_are_0():
    x = np.array([5, -5, 0], np.int32)
    np.testing.assert_array_equal(ja.asarray(x) // ja.zeros(3, dtype=ja.int32), [0, 0, 0])
    np.testing.assert_array_equal(ja.asarray(x) // 0, [0, 0, 0])


def test_other_bounds_compile_nothing():
    found = [ja.random.uniform(0, (5,), minval=0.0, maxval=x) for x in (1.0, 2.0)]
    np.testing.assert_allclose(found[1], 2 * np.asarray(found[0]), rtol=1e-6)
    before = ja.random._rows._cache_size()
    for high in range(3, 9):
        x = np.asarray(ja.random.integers(1, -2, high, (50,)))
        assert x.dtype == np.int32 and x.min() >= -2 and x.max() < high
        ja.random.uniform(0, (5,), maxval=float(high))
    assert ja.random._rows._cache_size() <= before + 1
    with pytest.raises(OverflowError, match="2147483648 does not fit int32"):
        ja.random.integers(0, 0, 2**31, (3,))


def test_sums_of_whole_weights_are_exact():
    x, weights = np.array([1, 1, 7], np.int32), np.array([2**24, 1, 5], np.int32)
    for values in (x, x.astype(np.float32)):
        found = ja.histogram(ja.asarray(values), 3, weights=ja.asarray(weights))[0]
        wanted = np.histogram(values, 3, weights=weights)[0]
        np.testing.assert_allclose(found, wanted, rtol=6e-8)


def test_products_of_narrow_floats_are_added_in_float32():
    x = np.full(10000, 1e-4, np.float16)
    assert float(ja.inner(ja.asarray(x), ja.asarray(x))) == pytest.approx(1e-4, rel=2e-3)


def test_lists_of_traced_numbers():
    found = jax.jit(lambda a: ja.asarray([a, 2 * a], dtype=float))(1.5)
    np.testing.assert_array_equal(found, [1.5, 3.0])
    with pytest.raises(ValueError, match="do not fit int32"):
        ja.asarray([2**40, 1], dtype=ja.int64)
