import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jdaso
from jdaso.data import batches, evened


@given(
    num_examples=st.integers(1, 300),
    batch_size=st.integers(1, 9),
    num_nodes=st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_all_nodes_get_equally_many_and_none_twice(num_examples, batch_size, num_nodes, epoch):
    if num_examples < batch_size * num_nodes:
        with pytest.raises(ValueError, match="do not fill one batch"):
            batches(num_examples, batch_size, node=0, num_nodes=num_nodes, epoch=epoch)
        return
    shares = [
        batches(num_examples, batch_size, node=node, num_nodes=num_nodes, epoch=epoch)
        for node in range(num_nodes)
    ]
    steps = num_examples // (num_nodes * batch_size)
    assert all(share.shape == (steps, batch_size) for share in shares)
    dealt = np.concatenate([share.reshape(-1) for share in shares])
    assert len(set(dealt)) == len(dealt) and set(dealt) <= set(range(num_examples))
    # The nodes' batches of one step together are the batch of a single node that takes them all.
    joined = batches(num_examples, batch_size * num_nodes, node=0, num_nodes=1, epoch=epoch)
    np.testing.assert_array_equal(np.concatenate(shares, axis=1), joined)


def test_epochs_and_seeds_differ_and_repeat():
    def deal(epoch, seed):
        return batches(100, 10, node=0, num_nodes=2, epoch=epoch, seed=seed).tolist()

    assert deal(0, 0) == deal(0, 0)
    assert deal(0, 0) != deal(1, 0) != deal(0, 1)


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"node": 2}, {"node": -1}])
def test_wrong_shares_are_named(wrong):
    settings = {"batch_size": 4, "node": 0, "num_nodes": 2, "epoch": 0} | wrong
    with pytest.raises(ValueError, match=r"Pass node=session.node"):
        batches(100, **settings)


@pytest.mark.parametrize(
    ("batch", "remedy"),
    [
        ((np.zeros((4, 2)), np.zeros(4)), r"a tuple.*got 2 parts. Give .*: len\(batch\[0\]\)"),
        ({"x": np.zeros((4, 2))}, r"a dict.*got 1 parts. Give .*: len\(batch\['x'\]\)"),
    ],
)
def test_a_length_that_counts_the_parts_of_a_batch_is_no_weight(batch, remedy):
    with jdaso.Session() as session:
        with pytest.raises(ValueError, match=remedy):
            next(evened([batch], session, weigh=len))
        by_samples = evened([batch], session, weigh=lambda batch: len(jax.tree.leaves(batch)[0]))
        assert [weight for _, weight in by_samples] == [4]
        assert [weight for _, weight in evened([np.zeros(3)], session, weigh=len)] == [3]
