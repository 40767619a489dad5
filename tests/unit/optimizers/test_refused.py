"""Calls of `daso` and `synchronous` that are refused, with the remedy."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest

import jdaso

PHASES = jdaso.Phases(20, 2, 2, sync_every=2)
PARAMS = {"w": jnp.ones(3)}


@pytest.fixture
def session():
    with jdaso.Session(engine=jdaso.Simulated(2)) as opened:
        yield opened


def updated(session, make, **given):
    """The updates of two virtual nodes, given arguments with a first axis of nodes."""
    tx = make(optax.sgd(0.1), session=session)

    def step(given):
        return tx.update(PARAMS, tx.init(PARAMS), PARAMS, **given)[0]

    return jax.jit(jax.vmap(step, axis_name=session.node_axis))(given)


@pytest.mark.parametrize("make", [functools.partial(jdaso.daso, phases=PHASES), jdaso.synchronous])
@pytest.mark.parametrize("name", ["value", "weight"])
def test_a_loss_or_weight_that_is_no_scalar(make, name, session):
    with pytest.raises(
        ValueError, match=rf"{name}=\) takes a scalar, got an array of shape \(1,\)"
    ):
        updated(session, make, **{name: jnp.ones((2, 1))})
    updated(session, make, **{name: jnp.ones(2)})


def test_a_daso_that_each_trace_would_make_anew(session):
    """`inject_hyperparams` around `daso` calls it in each update; inside, it works."""

    def made(learning_rate):
        return jdaso.daso(optax.adam(learning_rate), phases=PHASES, session=session)

    around = optax.inject_hyperparams(made)(learning_rate=0.1)
    state = around.init(PARAMS)
    with pytest.raises(ValueError, match=r"outside of jax.jit.*inject_hyperparams\(optax.adam\)"):
        jax.eval_shape(around.update, PARAMS, state, PARAMS)
    inside = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)
    inside = jdaso.daso(inside, phases=PHASES, session=session)
    assert inside.init(PARAMS).inner.hyperparams["learning_rate"] == 0.1
