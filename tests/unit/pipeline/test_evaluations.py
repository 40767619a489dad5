"""Programs of functions that a pipeline evaluates."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdaso
from jdaso import pipeline
from jdaso.pipeline._run import evaluations

PARAMS = {"w": np.full((3, 3), 0.1, np.float32)}


def loss_fn(params, batch):
    return jnp.mean((batch @ params["w"]) ** 2)


def test_programs_of_functions_that_are_not_used_again_are_dropped(monkeypatch):
    monkeypatch.setattr(evaluations, "_KEPT", 3)
    client, batch = jax.devices()[0].client, np.ones((4, 3), np.float32)
    with jdaso.Session() as session:
        plan = pipeline.partition(loss_fn, PARAMS, batch, num_partitions=1)
        pipe = pipeline.Pipeline(plan, optax.sgd(0.1), session=session)
        state, programs = pipe.init(PARAMS), []
        for k in range(12):
            found = pipe.evaluate(state, batch, lambda params, x, k=k: k * loss_fn(params, x))
            np.testing.assert_allclose(found.loss, k * 0.09, rtol=1e-6)
            gc.collect()
            programs.append(len(client.live_executables()))
        assert max(programs[3:]) == programs[3]
