"""The sum of a checksum: the library's and NumPy's are the same bits."""

import numpy as np
import pytest

from jdaso._jax.ffi import library, mixing
from jdaso._payload.checksums import checksum_on_host


@pytest.fixture
def native():
    if not library._registered():
        pytest.skip("there is no library here")


def by_numpy(monkeypatch, *args):
    with monkeypatch.context() as patched:
        patched.setattr(mixing, "_native", [])
        return mixing.sum_of_mixed(*args)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 65, 2**16, 2**16 + 1, 200_003])
@pytest.mark.parametrize("begin", [0, 5, 2**31, 2**32 - 3])
def test_both_ways_are_alike(monkeypatch, native, size, begin):
    words = np.random.default_rng(size).integers(0, 2**32, size, np.uint32)
    assert mixing._native
    found = mixing.sum_of_mixed(words, begin)
    assert found == by_numpy(monkeypatch, words, begin)
    if size < 1000:
        assert found == expected(words, begin)


def expected(words, begin):
    """The formula, word by word, in numbers of Python."""
    total = 0
    for place, word in enumerate(map(int, words), begin):
        mixed = (place * 2654435761 ^ word) * 2246822519 % 2**32
        mixed = (mixed ^ mixed >> 15) * 3266489917 % 2**32
        total += mixed ^ mixed >> 13
    return total % 2**32


def test_words_at_an_odd_address_have_the_same_sum(native):
    words = np.random.default_rng(0).integers(0, 2**32, 1001, np.uint32)
    moved = np.frombuffer(b"?" + words.tobytes(), np.uint8)[1:].view(np.uint32)
    assert not moved.flags.aligned
    assert mixing.sum_of_mixed(moved, 7) == mixing.sum_of_mixed(words, 7)


def test_a_changed_bit_and_a_changed_place_are_seen(native):
    array = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    before = checksum_on_host(array)
    swapped, flipped = array.copy(), array.copy()
    swapped[:2] = swapped[1::-1]
    flipped.view(np.uint32)[4321] ^= 1
    assert len({before, checksum_on_host(swapped), checksum_on_host(flipped)}) == 3
    assert checksum_on_host(array, salt=1) != before
