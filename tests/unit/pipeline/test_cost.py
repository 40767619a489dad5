"""Costs of equations: the compiler's counts, asked for once in a process."""

import jax
import jax.numpy as jnp
import pytest

from jdaso.pipeline._plan import cost

X = jnp.ones((16, 16), jnp.float32)
PRODUCT = 2 * 16**3


def costs_of(function, *args):
    costs = cost.Costs()
    return [costs.of(eqn) for eqn in jax.make_jaxpr(function)(*args).eqns]


def test_a_product_of_matrices_costs_what_it_multiplies():
    (found,) = costs_of(jnp.dot, X, X)
    assert found.flops == pytest.approx(PRODUCT, rel=0.1)
    assert found.backward_flops == pytest.approx(2 * PRODUCT, rel=0.1)  # two such products


def test_a_loop_costs_its_length():
    def loop(x):
        return jax.lax.scan(lambda c, _: (c @ x, None), x, None, length=5)[0]

    (found,) = costs_of(loop, X)
    assert found.flops == pytest.approx(5 * PRODUCT, rel=0.1)


def test_a_second_plan_asks_for_nothing_anew(monkeypatch):
    def loss(x, y):
        return jnp.sum(jax.nn.relu(x @ y) + jax.nn.gelu(y))

    first = costs_of(loss, X, X)
    monkeypatch.setattr(cost, "_analysis", lambda *args: pytest.fail("asked again"))
    assert costs_of(loss, X, X) == first


def test_a_rule_of_its_own_is_no_other_functions_cost():
    def with_rule(again):
        f = jax.custom_vjp(lambda x: x @ x)
        f.defvjp(lambda x: (x @ x, x), lambda x, g: (sum((g @ x for _ in range(again)), g),))
        return f

    (one,), (three,) = costs_of(with_rule(1), X), costs_of(with_rule(3), X)
    assert one.flops == three.flops
    assert three.backward_flops > one.backward_flops + PRODUCT
