"""Sums of gradients over many micro-batches, against sums in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pipeline_in_process import loss_and_gradients

from jdaso import pipeline

MANY, WIDTH = 512, 4


def loss_fn(params, batch):
    """The first and the last stage use one matrix, so one rank sends its sum to the other."""
    x = jnp.tanh(batch @ params["tied"])
    for w in params["w"]:
        x = jnp.tanh(x @ w)
    return jnp.mean((x @ params["tied"]).astype(jnp.float32) ** 2), None


def problem(dtype):
    random = np.random.default_rng(0)
    make = lambda *shape: jnp.asarray(random.uniform(size=shape), dtype)  # noqa: E731
    return {"tied": make(WIDTH, WIDTH), "w": [make(WIDTH, WIDTH)] * 2}, make(MANY, WIDTH)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_gradients_of_many_micro_batches_are_rounded_once(dtype, partitions):
    params, batch = problem(dtype)
    plan = pipeline.partition(
        loss_fn, params, batch, num_partitions=partitions, num_microbatches=MANY
    )
    _, _, found = loss_and_gradients(plan, params, batch)
    step = jax.jit(jax.vmap(jax.grad(lambda p, x: loss_fn(p, x)[0]), (None, 0)))
    each = step(params, batch[:, None])
    for sums, of_each in zip(jax.tree.leaves(found), jax.tree.leaves(each), strict=True):
        wanted = np.asarray(of_each, np.float64).sum(0) / MANY
        assert sums.dtype == dtype
        np.testing.assert_allclose(
            np.asarray(sums, np.float64), wanted, rtol=2 * float(jnp.finfo(dtype).eps)
        )


@pytest.mark.parametrize(("number", "times"), [(1, 1), (2, 2)])
def test_one_micro_batch_needs_no_wider_sums(number, times):
    params, batch = problem(jnp.bfloat16)
    plan = pipeline.partition(loss_fn, params, batch, num_partitions=1, num_microbatches=number)
    (memory,) = plan.memory()
    assert memory.gradients == times * memory.parameters
