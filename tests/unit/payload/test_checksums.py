"""Checksums of replicated leaves: any change shows, with its place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._payload.checksums import checksum, checksums

SIZES = (1030, 5, 1)
"""Over a row that is summed at once, below one, and one number."""


def leaves(seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=size).astype(np.float32) for size in SIZES]


def total(arrays):
    return int(jax.jit(checksum)(tuple(map(jnp.asarray, arrays))))


def each(arrays):
    return np.asarray(jax.jit(checksums)(tuple(map(jnp.asarray, arrays))))


@pytest.mark.parametrize("leaf", range(len(SIZES)))
@pytest.mark.parametrize("bit", range(0, 32, 5))
def test_a_flipped_bit_shows_in_its_leaf_alone(leaf, bit):
    before, after = leaves(), leaves()
    after[leaf][-1:].view(np.uint32)[:] ^= np.uint32(1 << bit)
    assert total(after) != total(before)
    assert (each(after) != each(before)).tolist() == [k == leaf for k in range(len(SIZES))]


@pytest.mark.parametrize("pair", [(0, 1), (3, 1027), (1024, 1029)])
def test_numbers_that_have_changed_places_show(pair):
    """A sum of bits without their places would be the same."""
    before, after = leaves(), leaves()
    after[0][list(pair)] = before[0][list(pair[::-1])]
    assert total(after) != total(before) and each(after)[0] != each(before)[0]


@pytest.mark.parametrize("step", [1, 2**20])
def test_bits_that_cancel_in_a_sum_show(step):
    before, after = leaves(), leaves()
    words = after[0].view(np.uint32)
    words[7] += np.uint32(step)
    words[900] -= np.uint32(step)
    assert total(after) != total(before) and each(after)[0] != each(before)[0]


def test_leaves_that_have_changed_places_show():
    one, other = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    assert total([one, other]) != total([other, one])


def test_nothing_has_a_checksum_too():
    assert total([]) == 0 and each([]).shape == (0,)
