"""Arguments of the inner optimizer, and optimizers and arguments refused on several nodes."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import jdaso
from jdaso._optimizers.inner import update_with

PHASES = jdaso.Phases(total_steps=8, warmup_steps=2, cooldown_steps=3, sync_every=2, delay=1)
MAKE = {"daso": functools.partial(jdaso.daso, phases=PHASES), "synchronous": jdaso.synchronous}
every_optimizer = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


@pytest.fixture
def nodes():
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        yield session


def traced(session, tx, grads, params, **extra):
    """Traces a step of all virtual nodes."""

    def step(params):
        return tx.update(grads, tx.init(params), params, **extra)[0]

    spread = jax.tree.map(lambda x: jnp.stack([x, x]), params)
    return jax.make_jaxpr(jax.vmap(step, axis_name=session.node_axis))(spread)


def dpsgd():
    """Clips the gradient of each example, then takes their mean; as optax's, less the noise."""

    def update(grads, state, params=None):
        return jax.tree.map(lambda g: jnp.mean(jnp.clip(g, -1, 1), axis=0), grads), state

    clip = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
    return optax.chain(clip, optax.sgd(0.1))


# Gradients that have not the shapes of the parameters.


@every_optimizer
def test_gradients_of_examples_are_not_averaged_before_they_are_clipped(make, nodes):
    params = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    grads = {"w": jnp.ones((5, 3)), "b": jnp.ones(5)}
    tx = make(dpsgd(), session=nodes)
    with pytest.raises(
        ValueError, match=r"\['b'\] of shape \(5,\).* \(\).*blocking=\"parameters\""
    ):
        traced(nodes, tx, grads, params)
    traced(nodes, make(dpsgd(), session=nodes, blocking="parameters"), grads, params)


@every_optimizer
def test_devices_average_them_no_more_than_nodes(make):
    """One node, but several devices; ``blocking="parameters"`` would not help there."""
    mesh = AbstractMesh((2,), ("local",), axis_types=(AxisType.Auto,))
    with jdaso.Session() as session:
        tx = make(dpsgd(), session=session, local_axis="local", blocking="parameters")
        step = lambda w: tx.update(jnp.ones((5, 3)), tx.init(w), w)[0]  # noqa: E731
        step = jax.shard_map(step, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
        with pytest.raises(ValueError, match=r"\(5, 3\).*local_axis=None, under plain jax\.jit"):
            jax.make_jaxpr(step)(jnp.zeros(3))
        tx = optax.chain(jdaso.local_mean("local"), dpsgd())
        with pytest.raises(ValueError, match=r"local_mean.*\(5, 3\)"):
            jax.make_jaxpr(step)(jnp.zeros(3))


def test_one_node_may_be_given_any_gradients():
    params, grads = {"w": jnp.zeros(3)}, {"w": jnp.ones((5, 3))}
    with jdaso.Session() as session:
        for make in MAKE.values():
            tx, bare = make(dpsgd(), session=session), dpsgd()
            updates, _ = tx.update(grads, tx.init(params), params)
            expected, _ = bare.update(grads, bare.init(params), params)
            np.testing.assert_array_equal(updates["w"], expected["w"])


@every_optimizer
def test_gradients_of_a_part_of_the_parameters(make, nodes):
    """`optax.lookahead` is given gradients of the fast half of its pairs."""
    fast = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    tx = make(optax.lookahead(optax.sgd(0.1), 2, 0.5), session=nodes)
    pair = optax.LookaheadParams.init_synced(fast)
    traced(nodes, tx, jax.tree.map(jnp.ones_like, fast), pair)
    with pytest.raises(ValueError, match=r"\(4, 3\), which no parameter has"):
        traced(nodes, tx, {"w": jnp.ones((4, 3)), "b": jnp.ones(())}, pair)


# Arguments.


def loss(w):
    return jnp.sum((w - 1) ** 2)


def test_one_node_searches_along_lines_as_optax_does():
    """`mean_loss=` was passed to `value_fn`, which refuses it."""

    def trained(tx):
        w = jnp.zeros(4)
        state = tx.init(w)
        for _ in range(2):
            value, grad = jax.value_and_grad(loss)(w)
            more = dict(value=value, grad=grad, value_fn=loss)
            updates, state = tx.update(grad, state, w, **more)
            w = optax.apply_updates(w, updates)
        return w

    expected = trained(optax.lbfgs())
    with jdaso.Session() as session:
        for make in MAKE.values():
            np.testing.assert_array_equal(trained(make(optax.lbfgs(), session=session)), expected)


@every_optimizer
@pytest.mark.parametrize("takes", [(), ("value",), ("mean_loss",), ("value", "mean_loss")], ids=str)
def test_an_inner_optimizer_is_not_given_losses_that_it_does_not_take(make, takes, nodes):
    """The optimizer is in a chain, whose own signature takes everything."""
    seen = []

    def update(updates, state, params=None, *, scale, **given):
        for name in given:
            if name not in takes:
                raise TypeError(f"update() got an unexpected keyword argument '{name}'")
        seen.append(tuple(given))
        return updates, state

    strict = optax.GradientTransformationExtraArgs(lambda p: optax.EmptyState(), update)
    tx = make(optax.chain(optax.clip(1.0), strict), session=nodes)
    traced(nodes, tx, jnp.ones(3), jnp.ones(3), value=1.0, scale=2.0)
    assert seen and all(names == takes for names in seen)


def strict(**about):
    """Takes what a chain hands on, and calls a function of the user with it."""

    def update(updates, state, params=None, **given):
        about["calls"].append(tuple(given))
        return about["then"](updates, **given), state

    return optax.GradientTransformationExtraArgs(lambda p: optax.EmptyState(), update)


def adds_value(updates, *, value):
    return updates + value


def says_value(updates, **given):
    raise TypeError("unsupported operand: field 'value' of a string")


def calls_wrongly(updates, **given):
    return adds_value(updates, value=given["value"], scale=2)


@pytest.mark.parametrize(
    ("then", "said", "calls"),
    [
        (says_value, "field 'value' of a string", 1),
        (calls_wrongly, "unexpected keyword argument 'scale'", 1),
        (lambda updates, **given: updates + "text", "(?i)text|str", 1),
        # Without `mean_loss` it would do: that is tried once.
        (adds_value, None, 2),
    ],
)
def test_a_type_error_of_its_own_comes_through_and_is_not_tried_again(then, said, calls, nodes):
    seen = []
    expected = contextlib.nullcontext() if said is None else pytest.raises(TypeError, match=said)
    tx = MAKE["synchronous"](strict(then=then, calls=seen), session=nodes)
    with expected:
        traced(nodes, tx, jnp.ones(3), jnp.ones(3), value=1.0)
    assert len(seen) == calls


def given_losses(update, **losses):
    """A call of an inner optimizer's update, by `update_with`."""
    inner = optax.GradientTransformationExtraArgs(lambda p: optax.EmptyState(), update)
    return lambda: update_with(inner)(1.0, None, None, losses)


def test_the_first_error_is_raised_where_one_member_needs_what_another_refuses():
    """Bare optax raises the same; the loss is not reported as missing."""

    def refuses(**given):
        if given:
            raise TypeError("step() got an unexpected keyword argument 'value'")

    def update(updates, state, params=None, **given):
        refuses(**given)
        return adds_value(updates, **given), state

    call = given_losses(update, value=2.0)
    for _ in "twice":  # nothing is kept of an attempt that failed
        with pytest.raises(TypeError, match="step.. got an unexpected keyword argument 'value'"):
            call()


def test_an_error_behind_a_refusal_is_the_one_that_counts():
    def update(updates, state, params=None, **given):
        if given:
            raise TypeError("step() got an unexpected keyword argument 'value'")
        raise TypeError("shapes do not fit")

    with pytest.raises(TypeError, match="shapes do not fit"):
        given_losses(update, value=2.0)()


@pytest.mark.parametrize("listed", [True, False])
def test_a_signature_that_lists_its_arguments_is_believed(listed):
    """The update is called once: one that compiles, or counts, does not do so twice."""
    calls = []

    def takes_value(updates, state, params=None, *, value):
        calls.append(value)
        if not listed:
            raise TypeError("adam() got an unexpected keyword argument 'value'")
        return updates + value, state

    call = given_losses(takes_value, value=2.0, mean_loss=3.0)
    if listed:
        assert call() == (3.0, None)
    else:  # its own call, of which it says so itself
        with pytest.raises(TypeError, match="adam"):
            call()
    assert calls == [2.0]


def test_functions_of_c_and_arguments_given_twice():
    def of_c(updates, state, params=None, **given):
        return int("1", **given), state

    def twice(updates, state, params=None, **given):
        return dict(value=1, **given), state

    assert given_losses(of_c, value=2.0)() == (1, None)
    assert given_losses(twice, value=2.0)() == ({"value": 1}, None)


# Line searches.

SEARCHES = {
    "lbfgs": optax.lbfgs(),
    "backtracking": optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5)),
    "some leaves": optax.multi_transform(
        {"s": optax.lbfgs(), "n": optax.sgd(0.1)}, {"a": "s", "b": "n"}
    ),
    "several steps": optax.MultiSteps(optax.lbfgs(), 2).gradient_transformation(),
}


@every_optimizer
@pytest.mark.parametrize("inner", SEARCHES.values(), ids=SEARCHES)
def test_line_searches_are_refused_with_several_nodes(make, inner, nodes):
    params = {"a": jnp.ones(3), "b": jnp.ones(2)}
    for blocking in ("gradients", "parameters"):
        tx = make(inner, session=nodes, blocking=blocking)
        with pytest.raises(ValueError, match=r"line search \(ScaleBy.*Linesearch.*linesearch=None"):
            tx.init(params)


@every_optimizer
def test_a_state_that_was_restored_is_looked_at_too(make, nodes):
    """`init` is not called where a state comes from a file."""
    w = jnp.ones(3)
    with jdaso.Session() as alone:
        state = make(optax.lbfgs(), session=alone).init(w)
    tx = make(optax.lbfgs(), session=nodes)
    step = jax.vmap(lambda w: tx.update(w, state, w), axis_name=nodes.node_axis)
    with pytest.raises(ValueError, match="line search"):
        jax.make_jaxpr(step)(jnp.stack([w, w]))


def test_without_its_line_search_lbfgs_is_not_refused(nodes):
    tx = MAKE["daso"](optax.lbfgs(0.1, linesearch=None), session=nodes)
    traced(nodes, tx, jnp.ones(3), jnp.ones(3), value=1.0)
