"""A pipeline that goes on from a checkpoint."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso
from jdaso import pipeline
from jdaso.checkpoint import Checkpoints

COMM = MPI.COMM_WORLD
pytestmark = [
    pytest.mark.two_nodes,
    pytest.mark.skipif(COMM.size not in (2, 3), reason="2 or 3 partitions"),
]
PARAMS = {"w": [np.eye(4, dtype=np.float32)] * 4}
BATCH = np.ones((4, 4), np.float32)


def loss_fn(params, batch):
    for w in params["w"]:
        batch = jnp.tanh(batch @ w)
    return jnp.mean(batch**2)


def steps_of_waits(folder, steps):
    """The steps to which waits for other partitions belong, as errors name them."""
    with jdaso.Session(timeout_seconds=60) as session:
        plan = pipeline.partition(loss_fn, PARAMS, BATCH, num_partitions=COMM.size)
        pipe = pipeline.Pipeline(plan, optax.sgd(0.1), session=session)
        checkpoints = Checkpoints(folder, pipe, every_steps=1)
        state, begin = checkpoints.restore(pipe.init(PARAMS))
        for step in range(begin, begin + steps):
            state, _ = pipe.step(state, BATCH)
            checkpoints.after(step + 1, state)
        events = session.timeline.events
        return {event.step for event in events if event.lane == "messages"}


def test_steps_count_from_the_start_of_the_run(folder):
    assert steps_of_waits(folder, 2) == {0, 1}
    assert steps_of_waits(folder, 3) == {2, 3, 4}
