"""Copies by several threads: the same numbers, in shares of about equal size."""

import threading

import ml_dtypes
import numpy as np
import pytest

from jdaso._jax.ffi import copying

MANY = 4
LARGE = 3 * copying.SHARE_BYTES // 4 + 5  # float32 numbers: 3 shares and a little


@pytest.fixture(autouse=True)
def many_threads(monkeypatch):
    monkeypatch.setattr(copying, "threads", lambda: MANY)
    copying._pool.cache_clear()
    yield
    copying._pool().shutdown()
    copying._pool.cache_clear()


def pairs_of(*sources, dtype=np.float32):
    return [(np.zeros(source.shape, dtype), source) for source in sources]


def sources():
    rng = np.random.default_rng(0)
    large = rng.normal(size=LARGE).astype(np.float32)
    turned = rng.normal(size=(300, 500)).astype(np.float32).T
    return large, turned, np.zeros(0, np.float32), np.full((), 3, np.float32), large[:7]


def test_all_numbers_arrive():
    pairs = pairs_of(*sources())
    copying.copy_all(pairs)
    for target, source in pairs:
        np.testing.assert_array_equal(target, source)


def test_numbers_are_converted_as_by_one_thread():
    source = sources()[0].astype(ml_dtypes.bfloat16)
    pairs = pairs_of(source, source)
    copying.copy_all(pairs)
    np.testing.assert_array_equal(pairs[0][0], source.astype(np.float32))
    with pytest.raises(TypeError, match="same_kind"):
        copying.copy_all(pairs_of(source, source, dtype=np.int16))


def test_shares_are_of_about_equal_size_and_hold_everything_once():
    pairs = pairs_of(*sources())
    found = copying.shares(pairs, MANY)
    sizes = [sum(target.nbytes for target, _ in share) for share in found]
    assert len(sizes) == MANY
    assert sum(sizes) == sum(target.nbytes for target, _ in pairs)
    assert max(sizes) - min(sizes) <= 2 * 2**20


def test_large_copies_use_several_threads_and_small_ones_none(monkeypatch):
    by, copy = [], copying._copy

    def note(pairs):
        by.append(threading.get_ident())
        copy(pairs)

    monkeypatch.setattr(copying, "_copy", note)
    copying.copy_all(pairs_of(np.zeros(100, np.float32)))
    assert by == [threading.get_ident()]
    by.clear()
    copying.copy_all(pairs_of(sources()[0]))
    assert len(by) == 3 and len(set(by)) >= 2


def test_at_the_end_of_the_program_one_thread_copies(monkeypatch):
    """No thread can be started then."""
    copying._pool().shutdown()
    pairs = pairs_of(sources()[0])
    copying.copy_all(pairs)
    np.testing.assert_array_equal(pairs[0][0], pairs[0][1])
