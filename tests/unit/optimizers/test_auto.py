"""B and S from measured times on virtual nodes, whose exchanges take steps by a table."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso


def final_phase(steps=60, **settings):
    """The phase state after a run of two virtual nodes."""
    table = settings.pop("exchange_steps")
    phases = jdaso.Phases(steps, 2, 2, sync_every="auto", **settings)
    with jdaso.Session(engine=jdaso.Simulated(2, exchange_steps=table)) as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session, wire="auto")

        def one(gradients):
            def step(carry, gradient):
                params, state = carry
                updates, state = tx.update(gradient, state, params)
                return (optax.apply_updates(params, updates), state), state.phase.sync_every

            params = [jnp.zeros(6), jnp.zeros(6)]
            return jax.lax.scan(step, (params, tx.init(params)), gradients)

        gradients = [jnp.ones((2, steps, 6)), jnp.ones((2, steps, 6))]
        (params, state), every = jax.vmap(one, axis_name=session.node_axis)(gradients)
    for leaf in params:
        np.testing.assert_allclose(leaf, -0.1 * steps, rtol=1e-5, err_msg="no step was lost")
    return state.phase, every


@pytest.mark.parametrize(
    ("fragments", "exchange_steps", "every"), [(1, 1, 1), (1, 3, 3), (2, 3, 6), (1, 200, 64)]
)
def test_the_interval_follows_the_time_of_a_cycle_of_exchanges(fragments, exchange_steps, every):
    """Exchanges of F fragments follow each other on the link."""
    settings = {"delay": "auto", "fragments": fragments, "exchange_steps": exchange_steps}
    phase, over_time = final_phase(**settings)
    np.testing.assert_array_equal(phase.sync_every, [every] * 2)
    np.testing.assert_array_equal(phase.delay, [min(exchange_steps, every)] * 2)
    assert over_time[0, 0] == 1, "before anything is measured"


def test_only_the_first_fragment_sets_the_interval():
    """Exchanges of fragment 1 (at even steps) take 9 steps; B follows those of fragment 0."""
    settings = {"delay": "auto", "fragments": 2, "exchange_steps": {8: 9, 10: 9, 16: 9}}
    _, over_time = final_phase(**settings)
    assert set(np.asarray(over_time[0]).tolist()) == {1, 2}


def test_a_fixed_delay_of_one_step_is_kept():
    phase, _ = final_phase(delay=1, fragments=1, exchange_steps=5)
    assert (int(phase.sync_every[0]), int(phase.delay[0])) == (5, 1)
