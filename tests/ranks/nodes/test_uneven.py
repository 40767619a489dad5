"""Nodes with unequal numbers of batches and samples, against one process that has them all."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI
from nights import at_night

import jdaso
import jdaso.data

pytestmark = pytest.mark.three_nodes
RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
FEATURES, RATE = 7, 0.05


def batches_of(node):
    """Node p has ``3 + 2 p`` batches of ``4 + 3 p`` samples."""
    random = np.random.default_rng(node)
    shape = (3 + 2 * node, 4 + 3 * node, FEATURES)
    return list(random.normal(size=shape).astype(np.float32))


def loss_of(params, batch):
    return jnp.mean((batch @ params["w"] - 1) ** 2)


def train(session, make, epochs=2):
    mine = batches_of(session.node)
    updates_of_epoch = 3 + 2 * (SIZE - 1)
    tx = make(optax.sgd(RATE), session, epochs * updates_of_epoch)
    params = {"w": jnp.zeros(FEATURES)}
    state = tx.init(params)

    @jax.jit
    def step(params, state, batch, weight):
        value, grads = jax.value_and_grad(loss_of)(params, batch)
        updates, state = tx.update(grads, state, params, value=value, weight=weight)
        return optax.apply_updates(params, updates), state

    count = 0
    for _ in range(epochs):
        for batch, weight in jdaso.data.evened(mine, session, weigh=len):
            with session.told():
                params, state = jax.block_until_ready(step(params, state, batch, float(weight)))
            count += 1
    assert count == epochs * updates_of_epoch
    return np.asarray(jdaso.finalize(params, state, session)["w"]), state


def synchronous(inner, session, steps):
    return jdaso.synchronous(inner, session=session)


def daso(wire):
    def make(inner, session, steps):
        phases = jdaso.Phases(steps, 1, 4, sync_every=2, delay=1)
        return jdaso.daso(inner, phases=phases, session=session, wire=wire)

    return make


def one_process(epochs=2):
    """Trains in one process: each update takes all samples that any node has for it."""
    w = np.zeros(FEATURES)
    everyone = [batches_of(node) for node in range(SIZE)]
    for _ in range(epochs):
        for k in range(max(map(len, everyone))):
            x = np.concatenate([own[k] for own in everyone if k < len(own)]).astype(np.float64)
            w = w - RATE * 2 * x.T @ (x @ w - 1) / len(x)
    return w


@pytest.fixture(params=["mpi4py", at_night("mpi4jax")])
def session(request):
    with jdaso.Session(engine=request.param) as session:
        yield session


def test_synchronous_training_is_that_of_one_process(session):
    held, _ = train(session, synchronous)
    np.testing.assert_allclose(held, one_process(), atol=2e-6)


@pytest.mark.parametrize("wire", ["float32", at_night("int8"), "int4"])
def test_daso_comes_near_it_and_all_nodes_to_the_same(session, wire):
    held, state = train(session, daso(wire))
    for other in MPI.COMM_WORLD.allgather(held.tobytes()):
        assert other == held.tobytes()
    assert not state.ticket.any()
    exact = one_process()
    assert np.linalg.norm(held - exact) < 0.15 * np.linalg.norm(exact)


@pytest.mark.several
@pytest.mark.parametrize("weight", [-3.0, at_night(np.nan), at_night(np.inf)])
@pytest.mark.parametrize("make", [at_night(synchronous), daso("float32"), at_night(daso("int8"))])
def test_a_weight_that_is_none_is_an_error_on_all(session, make, weight):
    tx = make(optax.sgd(RATE), session, 9)
    params = {"w": jnp.zeros(FEATURES)}
    state = tx.init(params)

    @jax.jit
    def step(params, state, weight):
        updates, state = tx.update(params, state, params, weight=weight)
        return optax.apply_updates(params, updates), state

    odd = RANK == SIZE - 1
    said = rf"A weight must be finite and at least 0: node {SIZE - 1} gave (-\d[.\d]*|nan|inf) "
    with pytest.raises(jdaso.NodeError, match=said):
        for n in range(9):  # late exchanges report at their merge
            with session.told():
                given = weight if odd and n >= 2 else 4.0
                params, state = jax.block_until_ready(step(params, state, given))


@pytest.mark.several
def test_a_node_without_batches_is_named_on_all(session):
    mine = [] if RANK == SIZE - 1 else [1, 2]
    with pytest.raises(jdaso.NodeError, match=f"No batches on node {SIZE - 1}, and 2 on another"):
        next(jdaso.data.evened(mine, session))
