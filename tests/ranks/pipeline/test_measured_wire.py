"""Replicas of a pipeline whose wire is measured, and measured anew when the run goes on."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso
from jdaso._session import channels

COMM = MPI.COMM_WORLD
PARTITIONS = 2 if COMM.size == 4 else 1
STEPS, STOP, WIDTH = 16, 7, 8
pytestmark = [
    pytest.mark.two_nodes,
    pytest.mark.skipif(COMM.size < 2, reason="one node measures no wire"),
]


def loss_fn(params, batch):
    x, y = batch
    for w in params["w"]:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


def trained(steps, folder):
    """The parameters after these steps of a run, as bits, and the wire."""
    with jdaso.Session(timeout_seconds=60) as session:
        random = np.random.default_rng(COMM.rank // PARTITIONS)
        batches = random.standard_normal((steps, 2, 12, WIDTH)).astype(np.float32)
        wires = []
        result = jdaso.fit(
            loss_fn,
            {"w": [np.eye(WIDTH, dtype=np.float32)] * 4},
            optax.sgd(0.1, momentum=0.9),
            [tuple(batch) for batch in batches],
            session=session,
            strategy="hybrid",
            num_partitions=PARTITIONS,
            num_microbatches=2,
            phases=jdaso.Phases(STEPS, 2, 4, sync_every=4, delay=3),
            settings={"wire": "auto"},
            folder=folder,
            every_steps=STOP,
            on_step=lambda n, found, pipe, state: wires.append(pipe.replicas.fastest_wire().name),
        )
        return [np.asarray(x).tobytes() for x in jax.tree.leaves(result.params)], wires[-1]


def test_the_wire_of_the_checkpoint_stays(folder, monkeypatch):
    monkeypatch.setattr(channels, "host_seconds_of", lambda wire, nodes: 0.0)
    whole, first = trained(STEPS, None)
    trained(STOP, folder)
    slow = lambda wire, nodes: 0.0 if wire.name == "float32" else 1.0  # noqa: E731
    monkeypatch.setattr(channels, "host_seconds_of", slow)
    goes_on, second = trained(STEPS, folder)
    assert (first, second) == ("int4", "int4")
    assert goes_on == whole
