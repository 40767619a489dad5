"""Parts of an update that are due only now and then: conditions on CPUs, loops on GPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso
from jdaso._optimizers import conditions, cycling, stages

FORMS = [conditions._as_condition, conditions._as_loop]
GRADIENTS = jnp.asarray(np.random.default_rng(0).normal(size=(30, 3, 8)), jnp.float32)


@pytest.mark.parametrize("due", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_the_function_counts_where_it_is_due(form, due):
    x = {"a": jnp.arange(3.0), "b": jnp.int32(4), "text": "kept", "none": None}
    found = jax.jit(lambda due: form(due, lambda x: x | {"a": 2 * x["a"] + x["b"]}, x)["a"])(due)
    np.testing.assert_array_equal(found, [4.0, 6.0, 8.0] if due else [0.0, 1.0, 2.0])


@pytest.mark.parametrize("form", FORMS)
def test_one_inside_of_another(form):
    def outer(x, second):
        return form(second, lambda x: x + 10, x + 1)

    run = jax.jit(lambda a, b: form(a, lambda x: outer(x, b), jnp.int32(0)))
    assert [int(run(a, b)) for a in (False, True) for b in (False, True)] == [0, 0, 1, 11]


def test_outside_of_jit_what_is_due_is_called_and_nothing_else():
    called = []

    def function(x):
        called.append(x)
        return x | {"a": x["a"] + 1}

    x = {"a": jnp.zeros(2), "b": jnp.ones(3)}
    assert conditions.when(jnp.bool_(False), function, x) == x and not called
    found = conditions.when(jnp.bool_(True), function, x)
    assert called == [x] and found["b"] is x["b"]
    np.testing.assert_array_equal(found["a"], 1)


def test_a_loop_carries_what_is_replaced_and_nothing_else():
    x = {"large": jnp.ones(1000), "count": jnp.int32(0)}

    def count(due):
        return conditions._as_loop(due, lambda x: x | {"count": x["count"] + 1}, x)

    (loop,) = [eqn for eqn in jax.make_jaxpr(count)(True).eqns if eqn.primitive.name == "while"]
    assert [var.aval.shape for var in loop.outvars] == [(), ()]  # the condition and the count


def trained(**settings):
    """Parameters of three virtual nodes after a run that warms up, cycles and cools down."""
    phases = jdaso.Phases(30, warmup_steps=4, cooldown_steps=6, sync_every=4, delay=2, fragments=2)
    params = {"w": jnp.ones((3, 4)), "b": jnp.zeros((3, 4))}
    with jdaso.Session(engine=jdaso.Simulated(3)) as session:
        tx = jdaso.daso(optax.adam(0.1), phases=phases, session=session, **settings)
        node = functools.partial(jax.vmap, axis_name=session.node_axis)

        def step(carry, gradient):
            params, state = carry
            gradients = {"w": gradient[:, :4], "b": gradient[:, 4:]}
            updates, state = node(tx.update)(gradients, state, params)
            params = optax.apply_updates(params, updates)
            return (params, state), params

        start = params, node(tx.init)(params)
        return jax.jit(lambda: jax.lax.scan(step, start, GRADIENTS)[1])()


@pytest.mark.parametrize("settings", [{}, {"blocking": "parameters", "wire": "int8"}])
def test_a_run_is_the_same_in_both_forms(settings, monkeypatch):
    runs = []
    for form in FORMS:
        for module in (cycling, stages):
            monkeypatch.setattr(module, "when", form)
        runs.append(trained(**settings))
    for one, other in zip(*map(jax.tree.leaves, runs), strict=True):
        assert np.ptp(one, axis=0).min() > 0.1  # all parameters move
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
