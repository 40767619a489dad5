"""Calls of `daso` and `synchronous` that are refused, with the remedy."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest

import jdaso
from jdaso._jax.transformations import require_transformation

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


@pytest.mark.parametrize("given", ["adam", optax.adam, None], ids=["name", "function", "none"])
def test_what_is_no_optax_transformation_is_refused(given):
    with pytest.raises(
        TypeError, match=r"jdaso.outer: .* must be an optax transformation"
    ) as found:
        require_transformation(given, "jdaso.outer: the outer optimizer")
    assert ("Call adam: adam(...)" in str(found.value)) == (given is optax.adam)
    require_transformation(optax.adam(1e-3), "jdaso.outer: the outer optimizer")
