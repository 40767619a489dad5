"""Numbers that no mean can hold, of inner states and of discarded exchanges; virtual nodes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso

STEPS = 14


def run(merge, *, wire="float32", weight=lambda i: 1.0, gradient=0.0, on="raise", faults=None):
    """The first number of each node's parameters after each update."""
    engine = jdaso.Simulated(2, faults=faults or {})
    with jdaso.Session(engine=engine) as session:
        phases = jdaso.Phases(STEPS, warmup_steps=1, cooldown_steps=3, sync_every=2, delay=1)
        about = {"phases": phases, "session": session, "merge": merge, "wire": wire}
        tx = jdaso.daso(optax.sgd(0.1), on_nonfinite=on, **about)

        def node(number):
            params = jnp.full(3, 5.0)

            def body(carried, i):
                params, state = carried
                grads = jnp.full(3, gradient) * number
                updates, state = tx.update(grads, state, params, weight=weight(i))
                params = optax.apply_updates(params, updates)
                return (params, state), params[0]

            return jax.lax.scan(body, (params, tx.init(params)), jnp.arange(STEPS))[1]

        return np.asarray(jax.jit(jax.vmap(node, axis_name=session.node_axis))(jnp.arange(2)))


@pytest.mark.parametrize("merge", ["corrected", jdaso.outer(optax.sgd(0.7))])
def test_a_result_without_weight_moves_nothing(merge):
    """Of a cycle in which no node had data there is no mean; its zeros are no target."""
    found = run(merge, weight=lambda i: jnp.where((i >= 4) & (i < 8), 0.0, 1.0))
    np.testing.assert_array_equal(found, 5.0)


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_after_a_discarded_result_nodes_merge_again(wire):
    about = {"wire": wire, "gradient": 1.0, "on": "skip"}
    found = run(jdaso.outer(optax.sgd(1.0)), faults={(1, 3): float("nan")}, **about)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0, -1], found[1, -1], atol=1e-5)
    np.testing.assert_array_less(found[0, -1], 4.9)


@pytest.mark.parametrize("on", ["raise", "skip"])
def test_an_inner_state_that_begins_with_infinity_is_refused(on):
    """Else the run would end, or no node would be counted, when inner states are averaged."""
    inner = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(accumulation_size=50))
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        phases = jdaso.Phases(12, warmup_steps=2, cooldown_steps=4)
        tx = jdaso.daso(inner, phases=phases, session=session, on_nonfinite=on)
        with pytest.raises(ValueError, match=r"leaf \[1\].best_value.*jdaso.reduce_on_plateau"):
            tx.init(jnp.ones(3))


@pytest.mark.parametrize("best", [np.float64(1e300), 1e300, np.full(3, 1e300)])
def test_so_is_one_that_is_infinite_in_float32(best):
    inner = optax.GradientTransformation(lambda _: {"best": best}, optax.identity().update)
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        tx = jdaso.daso(inner, phases=jdaso.Phases(12), session=session)
        with pytest.raises(ValueError, match=r"leaf \['best'\]"):
            tx.init(jnp.ones(3))


def test_if_no_node_is_counted_the_cool_down_leaves_the_parameters_alone():
    """An infinity that comes into all inner states on the way."""

    def update(grads, state, params=None):
        del params
        return jax.tree.map(lambda g: -0.1 * g, grads), (state[0] + 1, 1.0 / (3.0 - state[0]))

    inner = optax.GradientTransformation(lambda _: (jnp.zeros(()), jnp.ones(())), update)
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        phases = jdaso.Phases(9, warmup_steps=1, cooldown_steps=4, sync_every=2, delay=1)
        about = {"phases": phases, "session": session, "on_nonfinite": "skip"}
        tx = jdaso.daso(inner, on_drift="ignore", **about)

        def node(number):
            params = jnp.full(3, 5.0)

            def body(carried, i):
                params, state = carried
                # The last state before the cool-down is infinite.
                state = state._replace(inner=(jnp.where(i == 4, 3.0, 0.0), state.inner[1]))
                updates, state = tx.update(jnp.full(3, 0.1) * (1 + number), state, params)
                params = optax.apply_updates(params, updates)
                return (params, state), params[0]

            return jax.lax.scan(body, (params, tx.init(params)), jnp.arange(9))[1]

        found = jax.jit(jax.vmap(node, axis_name=session.node_axis))(jnp.arange(2))
        assert (np.asarray(found) > 4.5).all(), found


def test_numbers_of_a_node_without_weight_do_not_count():
    """Real nodes send zeros for it; virtual ones must not look at what it does not send."""
    phases = jdaso.Phases(8, 0, 0, sync_every=2, delay=1, fragments=1)
    with jdaso.Session(engine=jdaso.Simulated(3)) as session:
        tx = jdaso.daso(optax.sgd(1.0), phases=phases, session=session)

        def step(params, state, weight):
            updates, state = tx.update(jnp.zeros(4), state, params, weight=weight)
            return optax.apply_updates(params, updates), state

        params = jnp.ones((3, 4))
        state = jax.vmap(tx.init, axis_name=session.node_axis)(params)
        step = jax.jit(jax.vmap(step, axis_name=session.node_axis))
        for n in range(4):
            if n == 2:  # the second exchange starts
                params = jnp.repeat(jnp.asarray([1.0, 3.0, jnp.nan])[:, None], 4, axis=1)
            params, state = jax.block_until_ready(step(params, state, jnp.asarray([1.0, 1.0, 0.0])))
    np.testing.assert_array_equal(params[:2], 2.0)
