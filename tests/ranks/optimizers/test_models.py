"""The models of one optimizer: one at a time, and never the numbers of another."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso

pytestmark = pytest.mark.two_nodes
SIZE = MPI.COMM_WORLD.Get_size()
PHASES = jdaso.Phases(12, warmup_steps=2, cooldown_steps=4, sync_every=2, delay=2)
several = pytest.mark.skipif(SIZE < 2, reason="needs several nodes")


def make(session, wire):
    tx = jdaso.daso(optax.sgd(0.1), phases=PHASES, session=session, wire=wire)

    @jax.jit
    def step(params, state):
        grads = params + session.node  # nodes differ, models too
        updates, state = tx.update(grads, state, params, value=jnp.sum(params))
        return optax.apply_updates(params, updates), state

    return tx, step


@several
@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_two_models_by_turns_are_an_error_on_all_nodes(wire):
    with jdaso.Session() as session:
        tx, step = make(session, wire)
        models = [jnp.full(700, value) for value in (1.0, -5.0)]
        states, means = [tx.init(params) for params in models], []
        with pytest.raises(Exception, match="this daso trains another model too.*second"):
            for _ in range(12):
                for k in range(2):
                    models[k], states[k] = step(models[k], states[k])
                    means.append(float(jnp.mean(models[k])))
        assert len(means) >= 2 * PHASES.warmup_steps
        for n, start in enumerate((1.0, -5.0)):  # what was averaged is the model's own
            alone = start
            for found in means[n::2][: PHASES.warmup_steps]:
                alone -= 0.1 * (alone + (SIZE - 1) / 2)
                assert found == pytest.approx(alone, abs=1e-5)


@several
@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_model_that_is_begun_anew_is_as_one_that_never_had_another(wire):
    """The first was left with an exchange in flight, whose numbers are its own."""
    ends = []
    for first in (True, False):
        with jdaso.Session() as session:
            tx, step = make(session, wire)
            if first:
                params, state = jnp.full(700, -5.0), tx.init(jnp.full(700, -5.0))
                while not state.ticket.any():
                    params, state = step(params, state)
            params = jnp.full(700, 1.0)
            state = tx.init(params)
            for _ in range(PHASES.total_steps):
                params, state = step(params, state)
            ends.append(np.asarray(jdaso.finalize(params, state, session)))
    np.testing.assert_array_equal(*ends)


@pytest.mark.any_mpi
def test_updates_outside_of_jit_end_where_compiled_ones_do():
    """Through all phases, with two fragments."""
    phases = jdaso.Phases(12, warmup_steps=2, cooldown_steps=4, fragments=2)
    ends = []
    for compiled in (True, False):
        with jdaso.Session() as session:
            tx = jdaso.daso(optax.adam(0.1), phases=phases, session=session, wire="int8")
            params = [jnp.full((20, 20), 2.0), jnp.full((20, 20), 3.0)]
            state, update = tx.init(params), jax.jit(tx.update) if compiled else tx.update
            for _ in range(phases.total_steps):
                grads = jax.tree.map(lambda leaf, session=session: leaf + session.node, params)
                updates, state = update(grads, state, params)
                params = optax.apply_updates(params, updates)
            ends.append(params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), *ends)


@several
def test_models_of_other_shapes_whose_fragments_are_alike_need_no_names():
    """An actor and a critic: their first fragments hold the same pieces."""
    phases = jdaso.Phases(12, warmup_steps=2, cooldown_steps=2, fragments=2)
    shapes = {"actor": ((40, 40), (40, 40), (2,)), "critic": ((40, 40), (40, 40), (1,))}
    ends = []
    for names in ({}, {"critic": "second"}):
        with jdaso.Session() as session:
            made = {
                which: jdaso.daso(
                    optax.sgd(0.1), phases=phases, session=session, name=names.get(which, "daso")
                )
                for which in shapes
            }

            @jax.jit
            def step(params, states, made=made, session=session):
                for which, tx in made.items():
                    grads = jax.tree.map(lambda leaf: leaf + session.node, params[which])
                    updates, state = tx.update(grads, states[which], params[which])
                    new = optax.apply_updates(params[which], updates)
                    params, states = params | {which: new}, states | {which: state}
                return params, states

            params = {which: [jnp.full(x, 2.0) for x in shapes[which]] for which in shapes}
            states = {which: tx.init(params[which]) for which, tx in made.items()}
            for _ in range(phases.total_steps):
                params, states = step(params, states)
            ends.append(jax.tree.map(np.asarray, params))
    jax.tree.map(np.testing.assert_array_equal, *ends)
