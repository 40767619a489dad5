"""The plateau factor between real nodes: the same bits on all, by the mean of unlike losses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso

pytestmark = [pytest.mark.any_mpi, pytest.mark.several, pytest.mark.two_nodes]
WORLD = MPI.COMM_WORLD
PHASES = jdaso.Phases(total_steps=32, warmup_steps=6, cooldown_steps=6, sync_every=4, delay=2)


@pytest.mark.parametrize("make", ["daso", "synchronous", "parameters"])
def test_factors_are_the_same_bits(make):
    inner = optax.chain(optax.adam(0.1), jdaso.reduce_on_plateau(4, patience=1, factor=0.7))
    with jdaso.Session(timeout_seconds=120) as session:
        if make == "daso":
            tx = jdaso.daso(inner, phases=PHASES, session=session)
        else:
            how = "gradients" if make == "synchronous" else make
            tx = jdaso.synchronous(inner, session=session, blocking=how)
        step = jax.jit(lambda g, state, x, loss: tx.update(g, state, x, value=loss))
        x, factors = jnp.ones(5), []
        state, random = tx.init(x), np.random.default_rng(session.node)
        for n in range(32):
            # Only node 0's improves, by less than the others' get worse.
            loss = 9 - 0.2 * n if session.node == 0 else 5 + 0.3 * n
            noise = 0.01 * random.normal()
            gradient = jnp.asarray(random.normal(size=5), jnp.float32)
            updates, state = step(gradient, state, x, np.float32(loss + noise))
            x = optax.apply_updates(x, updates)
            factors.append(np.float32(optax.tree.get(state, "plateau").scale).tobytes())
        everyone = WORLD.allgather(factors)
        assert all(others == factors for others in everyone)
        assert len(set(factors)) > 2, "the factor never fell: nothing was compared"
        jdaso.finalize(x, state, session)


@pytest.mark.parametrize("make", ["daso", "synchronous", "master_weights"])
def test_no_two_leaves_of_a_state_share_a_buffer(make):
    """JAX donates no buffer twice: a step with ``donate_argnums`` would fail at its first call."""
    inner = optax.chain(optax.adam(0.1), jdaso.reduce_on_plateau(4))
    params = {"w": jnp.ones((40, 3), jnp.bfloat16), "b": jnp.zeros(3)}
    with jdaso.Session(timeout_seconds=120) as session:
        if make == "synchronous":
            tx = jdaso.synchronous(inner, session=session, wire="int8")
        else:
            merge = jdaso.outer(optax.sgd(0.7, momentum=0.5))
            tx = jdaso.daso(inner, phases=PHASES, session=session, wire="int8", merge=merge)
        if make == "master_weights":
            tx = jdaso.master_weights(tx)
        state = tx.init(params)
        places = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state) if np.size(x)]
        assert len(set(places)) == len(places)
        step = jax.jit(lambda g, state, x: tx.update(g, state, x, value=1.0), donate_argnums=1)
        for _ in range(3):
            updates, state = step(params, state, params)
        jax.block_until_ready(updates)
