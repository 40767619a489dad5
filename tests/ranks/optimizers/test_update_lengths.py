"""Updates of a fixed length on real nodes: as on virtual ones, and from a checkpoint."""

import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso
from jdaso.checkpoint import Checkpoints

pytestmark = [pytest.mark.several, pytest.mark.three_nodes]
COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
STEPS, STOP = 30, 17
GRADS = np.random.default_rng(0).normal(size=(STEPS, SIZE, 40, 30)).astype(np.float32)


def make(session, wire="float32"):
    phases = jdaso.Phases(STEPS, 3, 4, sync_every=4, delay=2, fragments=2)
    lion = optax.lion(1e-3, b1=0.0, b2=0.0)  # the signs of the gradients alone
    return jdaso.daso(lion, phases=phases, session=session, wire=wire)


def train(tx, params, state, grads):
    """Parameters after each update, and the last state."""
    update, found = jax.jit(tx.update), []
    for grad in grads:
        updates, state = update({"w": grad}, state, params)
        params = optax.apply_updates(params, updates)
        found.append(np.asarray(params["w"]))
    return found, params, state


@pytest.mark.parametrize("wire", ["float32", "int4"])
def test_real_nodes_take_the_path_of_virtual_ones(wire):
    """Each node has its own factor, from its own progress."""
    with jdaso.Session() as session:
        tx, params = make(session, wire), {"w": jnp.ones((40, 30))}
        found, _, state = train(tx, params, tx.init(params), GRADS[:, RANK])
        factors = [np.asarray(x.factor) for x in state.lengths]
    assert len(factors) == 2 and all(1.05 < x.min() <= SIZE**0.5 for x in factors)
    everyones = COMM.gather((found, factors))
    if RANK > 0:
        return
    with jdaso.Session(MPI.COMM_SELF, engine=jdaso.Simulated(SIZE)) as virtual:
        tx = make(virtual, wire)
        of_node = lambda f: jax.vmap(f, axis_name=virtual.node_axis)  # noqa: E731
        node = optax.GradientTransformation(of_node(tx.init), of_node(tx.update))
        params = {"w": jnp.ones((SIZE, 40, 30))}
        expected, _, state = train(node, params, node.init(params), GRADS)
    np.testing.assert_allclose(np.stack([x for x, _ in everyones], 1), expected, atol=2e-6)
    for f, held in enumerate(state.lengths):
        np.testing.assert_allclose([x[f] for _, x in everyones], held.factor, rtol=1e-3)


def test_a_run_continues_from_its_checkpoint():
    """Bit for bit, with an exchange in flight."""
    folder = COMM.bcast(tempfile.mkdtemp() if RANK == 0 else None)
    with jdaso.Session() as session:
        tx, params = make(session), {"w": jnp.ones((40, 30))}
        _, params, state = train(tx, params, tx.init(params), GRADS[:STOP, RANK])
        assert state.ticket.any()
        saved = Checkpoints(folder, session, every_steps=1)
        saved.after(STOP, (params, state))
        _, *expected = train(tx, params, state, GRADS[STOP:, RANK])
    with jdaso.Session() as session:
        tx, params = make(session), {"w": jnp.ones((40, 30))}
        (params, state), _ = Checkpoints(folder, session).restore((params, tx.init(params)))
        _, *found = train(tx, params, state, GRADS[STOP:, RANK])
    assert all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(expected)))
    COMM.Barrier()
    if RANK == 0:
        shutil.rmtree(folder)
