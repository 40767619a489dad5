"""Second moments as with the batch of all nodes, against streams of gradients."""

import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._rules.second_moments import own_of, shared

D, D2, STEPS, SIZE = 0.9, 0.99, 1500, 4000


def moments(gradients):
    """First and second moments after a stream of gradients, in float64."""
    m, v = np.zeros(SIZE), np.zeros(SIZE)
    for g in gradients:
        m, v = D * m + (1 - D) * g, D2 * v + (1 - D2) * g * g
    return m, v


def streams(nodes, mean):
    """Gradients of one node, and the means over all nodes; the noise has variance 1."""
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        own = mean + random.normal(size=SIZE)
        others = (nodes - 1) * mean + np.sqrt(nodes - 1) * random.normal(size=SIZE)
        yield own, (own + others) / nodes


@pytest.mark.parametrize("nodes", [2, 4, 16, 64])
@pytest.mark.parametrize("mean", [0.0, 0.02, 3.0])
def test_one_node_estimates_those_of_the_mean_gradient(nodes, mean):
    """Noise or the mean dominates. A node's own are too large, up to P times."""
    own, all_nodes = zip(*streams(nodes, mean), strict=True)
    (m, v), (_, wanted) = moments(own), moments(all_nodes)
    found = np.asarray(shared(jnp.asarray(v, jnp.float32), jnp.asarray(m, jnp.float32), nodes, D))
    ratio = found.mean() / wanted.mean()
    assert 0.95 < ratio < 1 + 0.012 * nodes  # a sixth of k = 0.053 remains of the noise of m
    if mean < 1:
        assert v.mean() / wanted.mean() > 0.9 * nodes


@pytest.mark.parametrize("nodes", [2, 5, 64])
def test_bounds(nodes):
    """Results are never below ``v / P``, never above v."""
    random = np.random.default_rng(1)
    v = jnp.asarray(random.exponential(size=SIZE), jnp.float32)
    m = jnp.asarray(random.normal(size=SIZE) * np.sqrt(v), jnp.float32)
    found = shared(v, m, nodes, D)
    assert bool(jnp.all((found >= v / nodes * (1 - 1e-6)) & (found <= v * (1 + 1e-6))))
    assert bool(jnp.any(found < 1.01 * v / nodes)) and bool(jnp.any(found > 0.99 * v))
    alone = own_of(found, m, nodes, D)
    assert bool(jnp.all(alone >= found))


def test_one_node_is_all_nodes():
    v, m = jnp.float32([0.0, 1.0, 2.0]), jnp.float32([0.0, 0.5, 9.0])
    assert jnp.array_equal(shared(v, m, 1, D), v)
    assert jnp.array_equal(own_of(v, m, 1, D), v)


def test_scale_of_clipped_gradients_cancels_out():
    v, m = jnp.float32([1.0, 0.25]), jnp.float32([0.6, 0.1])
    scaled = shared(v * 2.0**-8, m * 2.0**-4, 4, D)
    assert jnp.array_equal(scaled, shared(v, m, 4, D) * 2.0**-8)
