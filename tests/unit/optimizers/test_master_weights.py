"""Float32 master weights of narrow parameters, between virtual nodes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso

NODES, STEPS = 3, 24
PHASES = jdaso.Phases(STEPS, 4, 5, sync_every=3, delay=2)
START = {"a": np.linspace(-1, 1, 40, dtype=np.float32), "b": np.ones((3, 4), np.float32)}
GRADS = np.random.default_rng(0).normal(size=(STEPS, NODES, 52)).astype(np.float32)


def tree_of(vector):
    return {"a": vector[:40], "b": vector[40:].reshape(3, 4)}


def train(session, tx, dtype, steps=STEPS):
    """Parameters and state of all nodes after each update, given fixed gradients."""

    def run(grads):
        params = {name: jnp.asarray(x, dtype) for name, x in START.items()}

        def step(carry, grad):
            params, state = carry
            updates, state = tx.update(tree_of(grad.astype(dtype)), state, params)
            carry = optax.apply_updates(params, updates), state
            return carry, carry

        return jax.lax.scan(step, (params, tx.init(params)), grads)[1]

    run = jax.vmap(run, in_axes=1, out_axes=1, axis_name=session.node_axis)
    return jax.jit(run)(GRADS[:steps])


def narrow(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype), tree)


def daso(session, inner):
    return jdaso.daso(inner, phases=PHASES, session=session)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_nodes_exchange_the_float32_ones(dtype):
    """The run of float32 parameters with the same gradients; p is w, rounded."""
    with jdaso.Session(engine=jdaso.Simulated(NODES)) as session:
        tx = jdaso.master_weights(daso(session, optax.adam(0.01)))
        params, state = train(session, tx, dtype)
        rounded = jnp.asarray(jnp.asarray(GRADS, dtype), jnp.float32)
        inner = daso(session, optax.adam(0.01))

        def run(grads):
            params = {name: jnp.asarray(x, dtype).astype(jnp.float32) for name, x in START.items()}

            def step(carry, grad):
                updates, state = inner.update(tree_of(grad), carry[1], carry[0])
                carry = optax.apply_updates(carry[0], updates), state
                return carry, carry[0]

            return jax.lax.scan(step, (params, inner.init(params)), grads)[1]

        run = jax.vmap(run, in_axes=1, out_axes=1, axis_name=session.node_axis)
        wanted = jax.jit(run)(rounded)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)  # noqa: E731
    jax.tree.map(close, state.master, wanted)  # XLA may fuse the two programs differently
    small = float(jnp.finfo(dtype).tiny) + 2.0**-23  # XLA rounds subnormal numbers to 0
    near = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=small)  # noqa: E731
    wide = narrow(params, jnp.float32), narrow(narrow(state.master, dtype), jnp.float32)
    jax.tree.map(near, *wide)  # optax adds in float32, to numbers of about 1
    last = jax.tree.map(lambda x: np.asarray(x[-1], np.float32), params)
    assert all((x == x[:1]).all() for x in jax.tree.leaves(last))


def test_small_steps_add_up():
    """A bfloat16 number at 1.0 cannot move by 0.001; a hundred such steps are 0.1."""
    grads = {"w": jnp.ones(3, jnp.bfloat16)}
    for make, wanted in ((lambda tx: tx, 1.0), (jdaso.master_weights, 0.9)):
        tx = make(optax.sgd(1e-3))
        params = {"w": jnp.ones(3, jnp.bfloat16)}
        state = tx.init(params)
        for _ in range(100):
            updates, state = tx.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        assert params["w"].dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(params["w"], np.float32), wanted, rtol=0.004)


@pytest.mark.parametrize("steps", [3, 9, 10, 11, STEPS])
def test_finalize_takes_the_float32_ones(steps):
    """`finalize` returns the mean of w, rounded once, with any exchange in flight."""
    with jdaso.Session(engine=jdaso.Simulated(NODES)) as session:
        tx = jdaso.master_weights(daso(session, optax.sgd(0.01)))
        history = train(session, tx, jnp.bfloat16, steps)
        params, state = jax.tree.map(lambda x: x[-1], history)
        found = jdaso.finalize(params, state, session)
        wide = jdaso.finalize(state.master, state.inner, session)
    jax.tree.map(
        np.testing.assert_array_equal, found, jax.tree.map(lambda x: x.astype(jnp.bfloat16), wide)
    )
    assert found["a"].dtype == jnp.bfloat16


@pytest.mark.parametrize("steps", [9, 10, 11, STEPS])
def test_finalize_finds_those_of_some_parameters(steps):
    """`optax.multi_transform` gives a transformation some of them; the others do not change."""
    with jdaso.Session(engine=jdaso.Simulated(NODES)) as session:
        some = jdaso.master_weights(daso(session, optax.sgd(0.01)))
        labels = dict.fromkeys(START, "some") | {"a": "none"}
        tx = optax.multi_transform({"some": some, "none": optax.set_to_zero()}, labels)
        history = train(session, tx, jnp.bfloat16, steps)
        params, state = jax.tree.map(lambda x: x[-1], history)
        found = jdaso.finalize(params, state, session)
        inner = state.inner_states["some"].inner_state
        wide = jdaso.finalize(inner.master, inner.inner, session)
    for name in START:
        if name != "a":
            np.testing.assert_array_equal(found[name], wide[name].astype(jnp.bfloat16))
    start = np.asarray(jnp.asarray(START["a"], jnp.bfloat16), np.float32)
    np.testing.assert_array_equal(np.asarray(found["a"][0], np.float32), start)


@pytest.mark.parametrize("steps", [9, 10, 11])
def test_those_of_the_inner_optimizer_are_its_own(steps):
    """Around `master_weights` the nodes exchange the narrow parameters, in flight or not."""
    with jdaso.Session(engine=jdaso.Simulated(NODES)) as session:
        tx = daso(session, jdaso.master_weights(optax.sgd(0.01)))
        history = train(session, tx, jnp.bfloat16, steps)
        params, state = jax.tree.map(lambda x: x[-1], history)
        found = jdaso.finalize(params, state, session)
    for name, x in found.items():
        assert x.dtype == jnp.bfloat16
        mean = np.mean(np.asarray(params[name], np.float32), axis=0)
        np.testing.assert_allclose(np.asarray(x, np.float32)[0], mean, atol=0.05)
        np.testing.assert_array_equal(x[0], x[1])


def test_parameters_that_lose_their_type_are_refused():
    tx = jdaso.master_weights(optax.sgd(0.5))
    params = {"w": jnp.ones(2, jnp.bfloat16), "wide": jnp.ones(2)}
    updates, state = tx.update(params, tx.init(params), params)
    wide = jax.tree.map(jnp.add, params, updates)  # as eqx.apply_updates does
    with pytest.raises(ValueError, match=r"\['w'\].*float32.*optax.apply_updates"):
        tx.update(params, state, wide)


def test_other_leaves_are_passed_on():
    params = {"w": jnp.ones(2, jnp.bfloat16), "wide": jnp.ones(2), "count": jnp.int32(3)}
    tx = jdaso.master_weights(optax.sgd(0.5))
    state = tx.init(params)
    assert state.master["w"].dtype == jnp.float32
    assert state.master["wide"] is None and state.master["count"] is None
    grads = {"w": None, "wide": jnp.ones(2), "count": jnp.int32(0)}
    tx = jdaso.master_weights(optax.stateless(lambda g, p: g))
    updates, state = tx.update(grads, tx.init(params), params)
    assert updates["w"] is None
    np.testing.assert_array_equal(updates["wide"], 1.0)
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(grads, state)


def test_parameters_and_state_share_no_memory():
    """Both are donated; a wide leaf that the program changes is trained from there."""
    tx = jdaso.master_weights(optax.chain(optax.add_decayed_weights(1.0), optax.sgd(0.5)))
    params = {"w": jnp.ones(2, jnp.bfloat16), "wide": jnp.ones(2)}
    state = jax.jit(tx.init)(params)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state):
        updates, state = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
        return optax.apply_updates(params, updates), state

    params, state = step(params, state)
    params, state = step(params | {"wide": jnp.full(2, 8.0)}, state)
    np.testing.assert_array_equal(params["wide"], 8 - 0.5 * (1 + 8))
    np.testing.assert_array_equal(params["w"], -0.5)
