"""The factor of updates of a fixed length, against NumPy and its own laws."""

import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._rules.update_lengths import follow

OWN = np.array([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]], np.float32)
MEAN = np.array([[3.0, 0.0], [0.3, 0.4], [0.1, 0.0]], np.float32)


def test_a_factor_follows_the_ratio_of_lengths():
    """5 over 3, 5 over 0.5 which is above the root of 4 nodes, and no step at all."""
    found = follow(jnp.array([1.5, 1.9, 1.2]), OWN, MEAN, 4)
    np.testing.assert_allclose(found, [0.9 * 1.5 + 0.1 * 5 / 3, 2, 1.2], rtol=1e-6)


def test_the_first_merge_has_no_target_before_it():
    np.testing.assert_array_equal(follow(jnp.zeros(3), OWN, MEAN, 4), np.ones(3))


def test_nodes_that_move_alike_keep_their_lengths():
    """Bit for bit: otherwise equal batches would not train as one node does."""
    own = np.random.default_rng(0).normal(size=(8, 100)).astype(np.float32)
    np.testing.assert_array_equal(follow(jnp.ones(8), own, own, 4), np.ones(8))


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_independent_nodes_reach_the_root_of_their_number(nodes):
    own = np.random.default_rng(1).normal(size=(nodes, 1, 4096)).astype(np.float32)
    factor = jnp.ones(1)
    for _ in range(60):
        factor = follow(factor, own[0], own.mean(0), nodes)
    np.testing.assert_allclose(factor, np.sqrt(nodes), rtol=0.03)
