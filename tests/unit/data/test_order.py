"""The stream of samples: every one once per epoch, and a function of the seed alone."""

import sys

import numpy as np
import pytest
from grain.experimental import index_shuffle
from hypothesis import given
from hypothesis import strategies as st

from jdaso.data import Order

orders = st.builds(
    Order,
    num_samples=st.integers(1, 60),
    seed=st.integers(0, 2**40),
    shuffle=st.booleans(),
    block=st.integers(1, 25),
)


@given(orders, st.integers(0, 5))
def test_every_sample_comes_once_per_epoch(order, epoch):
    begin = epoch * order.num_samples
    found = order.samples(begin, begin + order.num_samples)
    assert sorted(found.tolist()) == list(range(order.num_samples))


@given(orders, st.integers(0, 200), st.lists(st.integers(0, 40), max_size=5))
def test_a_stretch_is_its_parts(order, begin, lengths):
    ends = np.cumsum([begin, *lengths]).tolist()
    parts = [order.samples(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    whole = order.samples(begin, ends[-1])
    assert whole.tolist() == [x for part in parts for x in part.tolist()]


@given(orders.filter(lambda order: order.shuffle), st.integers(0, 3))
def test_blocks_stay_together(order, epoch):
    """An epoch is the file's blocks, each whole, one after another."""
    begin, n, b = epoch * order.num_samples, order.num_samples, order.block
    found = order.samples(begin, begin + n) // b
    met = found[np.flatnonzero(np.diff(found, prepend=-1))]
    assert len(met) == len(set(met.tolist())) == -(-n // b)


def test_the_short_block_comes_anywhere():
    order = Order(10, seed=3, block=4)
    epochs = order.samples(0, 400).reshape(40, 10).tolist()
    assert {epoch.index(8) // 4 for epoch in epochs} == {0, 1, 2}


def test_the_permutation_is_grains():
    seed = int(np.random.SeedSequence((7, 2)).generate_state(1)[0])
    n = 2**16 + 2
    expected = [index_shuffle(i, max_index=n - 1, seed=seed, rounds=4) for i in range(100)]
    assert Order(n, seed=7).samples(2 * n, 2 * n + 100).tolist() == expected


@pytest.mark.parametrize("num_samples", [2**16, 2**16 + 1])
def test_large_files_too_come_once_per_epoch(num_samples):
    """grain's own shuffle of 2**16 + 1 numbers is no permutation."""
    found = Order(num_samples, seed=7).samples(num_samples, 2 * num_samples)
    assert np.bincount(found, minlength=num_samples).max() == 1


def test_the_order_is_this_one():
    """Fixed numbers: a restored run relies on the order."""
    assert Order(10, seed=3).samples(8, 22).tolist() == WRITTEN
    assert Order(10, seed=3, block=4).samples(0, 10).tolist() == WRITTEN_IN_BLOCKS


WRITTEN = [3, 8, 4, 1, 2, 8, 5, 0, 7, 9, 6, 3, 7, 4]
WRITTEN_IN_BLOCKS = [6, 4, 5, 7, 3, 2, 1, 0, 9, 8]


def test_epochs_and_seeds_differ():
    first = Order(50, seed=0).samples(0, 100).reshape(2, 50)
    assert (first[0] != first[1]).any()
    assert (first[1] != Order(50, seed=1).samples(0, 50)).any()  # no seed is another's next epoch


def test_places_are_equally_likely():
    """Each of 6 samples, or 2 blocks of 4 and 2, comes first equally often in 600 epochs."""
    for block in (1, 4):
        order = Order(6, seed=1, block=block)
        firsts = [int(order.samples(6 * epoch, 6 * epoch + 1)[0]) for epoch in range(600)]
        often = np.bincount(np.array(firsts) // block)
        spread = 4 * np.sqrt(600 / len(often))  # four standard deviations
        np.testing.assert_allclose(often, 600 / len(often), atol=spread)


def test_files_of_more_than_32_bits():
    order = Order(2**33, seed=1)
    found = order.samples(2**33 - 50, 2**33 + 50)
    assert found.max() > 2**32 and found.min() >= 0 and len(set(found.tolist())) > 98


def test_fingerprints_distinguish_orders():
    orders = [Order(9), Order(10), Order(9, seed=1), Order(9, shuffle=False), Order(9, block=2)]
    assert len({order.fingerprint for order in orders}) == len(orders)
    assert Order(9).fingerprint == Order(9).fingerprint


@pytest.mark.parametrize("wrong", [{"num_samples": 0}, {"seed": -1}, {"block": 0}])
def test_numbers_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be at least"):
        Order(**{"num_samples": 5} | wrong)


def test_without_grain(monkeypatch):
    monkeypatch.setitem(sys.modules, "grain", None)
    assert Order(3, shuffle=False).samples(2, 5).tolist() == [2, 0, 1]
    with pytest.raises(ImportError, match=r'Shuffling needs grain.*pip install "jdaso\[data\]"'):
        Order(3)
