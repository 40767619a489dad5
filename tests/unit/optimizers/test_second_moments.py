"""Shared second moments: the optimizers in which they are found, and their effect."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
import training

import jdaso
from jdaso._optimizers.find_moments import MomentsFinder
from jdaso._optimizers.inner import update_with

PARAMS = {"a": jnp.ones(()), "b": jnp.ones(5), "c": jnp.ones((3, 4)), "none": jnp.zeros((0, 2))}
LABELS = {"a": "adam", "b": "sgd", "c": "adam", "none": "sgd"}
WHERE = {"a": True, "b": False, "c": True, "none": False}
OF_TWO = optax.partition({"adam": optax.adam(0.1, b2=0.9), "sgd": optax.sgd(0.1)}, LABELS)
INJECTED = optax.inject_hyperparams(optax.adamw)(learning_rate=0.1, b2=0.98)


@pytest.mark.parametrize(
    ("inner", "leaves", "decays"),
    [
        pytest.param(optax.adam(0.1), 3, (0.9, 0.999), id="adam"),
        pytest.param(optax.adamw(0.1, b1=0.8, b2=0.95), 3, (0.8, 0.95), id="adamw"),
        pytest.param(optax.nadam(0.1), 3, (0.9, 0.999), id="nadam"),
        pytest.param(optax.lamb(0.1), 3, (0.9, 0.999), id="lamb"),
        pytest.param(optax.amsgrad(0.1), 3, (0.9, 0.999), id="amsgrad"),
        pytest.param(INJECTED, 3, (0.9, 0.98), id="injected"),
        pytest.param(optax.masked(optax.adam(0.1), WHERE), 2, (0.9, 0.999), id="masked"),
        pytest.param(OF_TWO, 2, (0.9, 0.9), id="partition"),
        pytest.param(
            optax.chain(
                optax.clip_by_global_norm(1.0), optax.add_decayed_weights(0.1), optax.adam(1)
            ),
            3,
            (0.9, 0.999),
            id="chain",
        ),
        pytest.param(
            optax.chain(optax.adaptive_grad_clip(0.01), optax.adam(1)),
            3,
            (0.9, 0.999),
            id="adaptive clip",
        ),
        pytest.param(
            optax.chain(optax.centralize(), optax.adam(1)), 3, (0.9, 0.999), id="centralize"
        ),
    ],
)
def test_found(inner, leaves, decays):
    found = MomentsFinder(inner.init, update_with(inner)).find(PARAMS).shared
    assert len(found) == leaves
    flat = jax.tree.leaves(inner.init(PARAMS))
    for each in found:
        assert (each.first_decay, each.second_decay) == tuple(map(np.float32, decays))
        assert flat[each.first].shape == flat[each.second].shape
        assert flat[each.count].dtype == jnp.int32


def test_each_goes_with_its_parameter():
    inner = optax.adam(0.1)
    found = MomentsFinder(inner.init, update_with(inner)).find(PARAMS).shared
    shapes = [x.shape for x in jax.tree.leaves(PARAMS)]
    flat = jax.tree.leaves(inner.init(PARAMS))
    assert [shapes[each.parameter] for each in found] == [flat[each.first].shape for each in found]


def test_moments_in_a_tree_of_another_form_are_found():
    inner, params = optax.flatten(optax.adam(0.1)), {"one": jnp.ones((3, 4))}
    (found,) = MomentsFinder(inner.init, update_with(inner)).find(params).shared
    assert found.parameter is None and found.second_decay == np.float32(0.999)


def test_moments_in_a_tree_of_another_form_are_shared():
    params = {"one": jnp.ones((2, 3, 4))}
    gradients = np.random.default_rng(0).normal(size=(9, 2, 3, 4)).astype(np.float32)

    def trained(wrap, **settings):
        with jdaso.Session(engine=jdaso.Simulated(2)) as session:
            phases = jdaso.Phases(9, warmup_steps=1, cooldown_steps=1, sync_every=2, delay=1)
            tx = jdaso.daso(wrap(optax.adam(0.1)), phases=phases, session=session, **settings)
            node = functools.partial(jax.vmap, axis_name=session.node_axis)
            state, x = node(tx.init)(params), params
            update = jax.jit(node(tx.update))
            for gradient in gradients:
                updates, state = update({"one": gradient}, state, x)
                x = optax.apply_updates(x, updates)
        return x["one"]

    plain = trained(lambda x: x)
    np.testing.assert_allclose(trained(optax.flatten), plain, rtol=1e-6)
    assert np.abs(trained(optax.flatten, second_moments="own") - plain).max() > 0.01


@pytest.mark.parametrize(
    "inner",
    [
        pytest.param(optax.sgd(0.1, momentum=0.9), id="sgd"),
        pytest.param(optax.rmsprop(0.1), id="no first moments"),
        pytest.param(optax.contrib.schedule_free_adamw(0.1), id="no average of gradients"),
        pytest.param(optax.adam(0.1, b1=0.5), id="first moments that forget at once"),
        pytest.param(optax.adabelief(0.1), id="deviations"),
        pytest.param(optax.adamax(0.1), id="maxima"),
        pytest.param(optax.yogi(0.1), id="no fixed rate"),
        pytest.param(optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation(), id="several"),
        pytest.param(optax.adafactor(0.1), id="factors"),
        pytest.param(optax.chain(optax.add_noise(0.01, 0.5, 0), optax.adam(1)), id="noise"),
        pytest.param(
            optax.chain(optax.normalize_by_update_norm(), optax.adam(1)), id="of one length"
        ),
    ],
)
def test_not_found(inner):
    assert MomentsFinder(inner.init, update_with(inner)).find(PARAMS).shared == ()


def test_moments_that_are_not_shared_are_reported(caplog):
    """Adam's in float16 underflow, and no v is shared; SGD has none that could be."""
    half = jax.tree.map(lambda x: x.astype(jnp.float16), PARAMS)
    phases = jdaso.Phases(9, sync_every=2, delay=1)
    for inner, params, lines in (
        (optax.adam(0.1), half, 1),
        (optax.adam(0.1), PARAMS, 0),
        (optax.sgd(0.1), PARAMS, 0),
    ):
        caplog.clear()
        with jdaso.Session(engine=jdaso.Simulated(2)) as session:
            jdaso.daso(inner, phases=phases, session=session).init(params)
        assert caplog.text.count("does not share 3 second moments") == lines
    assert "nu['a']" not in caplog.text


@pytest.mark.parametrize("inner", [optax.adam, optax.lion])
def test_around_daso_injected_hyperparameters_change_nothing(inner, caplog):
    """Each update then makes another `daso`, whose inner optimizer holds traced numbers."""
    phases = jdaso.Phases(30, 4, 4, sync_every=2, delay=1)
    grads = np.random.default_rng(0).normal(size=(30, 3, 40)).astype(np.float32)

    def trained(session, tx):
        def run(grads):
            def step(carry, grad):
                params, state = carry
                updates, state = tx.update(grad, state, params)
                return (params + updates, state), None

            params = jnp.ones(40)
            return jax.lax.scan(step, (params, tx.init(params)), grads)[0][0]

        run = jax.vmap(run, in_axes=1, axis_name=session.node_axis)
        return jax.jit(run)(grads)

    found = []
    for around in (False, True):
        with jdaso.Session(engine=jdaso.Simulated(3)) as session:

            def made(learning_rate, session=session):
                return jdaso.daso(inner(learning_rate), phases=phases, session=session)

            if around:
                tx = optax.inject_hyperparams(made)(learning_rate=0.01)
                tx.init(jnp.ones(40))  # as in any loop, outside of its step
            else:
                tx = made(0.01)
            found.append(trained(session, tx))
    np.testing.assert_allclose(*found, atol=1e-6)
    assert not caplog.text


def told_rate(inner):
    """An optimizer that cannot be called without a rate."""

    def update(grads, state, params=None, *, rate, **extra):
        updates, state = inner.update(grads, state, params)
        return jax.tree.map(lambda u: -rate * u, updates), state

    return optax.GradientTransformationExtraArgs(inner.init, update)


@pytest.mark.parametrize(
    ("inner", "setting"),
    [
        (optax.scale_by_adam(), "does not share 3 second moments"),
        (optax.scale_by_lion(), "cannot tell whether updates"),
    ],
)
def test_a_trial_that_failed_is_reported_with_its_error(inner, setting, caplog):
    phases = jdaso.Phases(9, sync_every=2, delay=1)
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        jdaso.daso(told_rate(inner), phases=phases, session=session).init(PARAMS)
    assert setting in caplog.text
    assert "TypeError" in caplog.text and "'rate'" in caplog.text


def length(**options):
    """Mean length of a cycling step of 4 virtual nodes, under gradients of pure noise."""
    phases = jdaso.Phases(120, 20, 4, sync_every=4, delay=1)
    grads = np.random.default_rng(0).normal(size=(120, 4, 400)).astype(np.float32)
    with jdaso.Session(engine=jdaso.Simulated(4)) as session:
        tx = jdaso.daso(optax.adam(1e-6), phases=phases, session=session, **options)

        def run(grads):
            params = jnp.ones(400)

            def step(state, grad):
                updates, state = tx.update(grad, state, params)
                return state, jnp.mean(jnp.abs(updates))

            return jax.lax.scan(step, tx.init(params), grads)[1]

        run = jax.vmap(run, in_axes=1, out_axes=1, axis_name=session.node_axis)
        return np.asarray(jax.jit(run)(grads))[40:110].mean()


def test_steps_are_longer():
    """Steps are up to twice as long under pure noise with 4 nodes.

    It is not quite twice, as a large first moment may be no noise, and counts.
    """
    assert 1.6 < length() / length(second_moments="own") < 2.0


def mean_second_moments(phases, **options):
    """The mean of Adam's second moments of node 0 after each update, with 4 nodes."""
    problem = reference.Quadratic(phases.total_steps, 4, 400)
    with jdaso.Session(engine=jdaso.Simulated(4)) as session:
        tx = jdaso.daso(optax.adam(1e-6, b2=0.95), phases=phases, session=session, **options)
        _, inner, _ = training.train(session, tx, problem, {"all": (400,)})
    return np.asarray(inner["nu"])[:, 0].mean(axis=-1)


def test_second_moments_are_those_of_all_nodes_after_cycling():
    """Blocking updates need second moments of the mean gradient; cycling ends with these."""
    for second_moments, low, high in (("shared", 0.2, 0.36), ("own", 0.7, 1.1)):
        phases = jdaso.Phases(140, 40, 10, sync_every=4, delay=1)
        found = mean_second_moments(phases, second_moments=second_moments)
        assert low < found[129] / 4 / found[38] < high


def test_the_last_update_of_the_warm_up_makes_them_a_node_s_own():
    """Four times as large, where noise is all; the cycling updates go on from there."""
    found = mean_second_moments(jdaso.Phases(60, 40, 0, sync_every=4, delay=1))
    assert 0.9 < found[38] / found[37] < 1.1
    assert 2 < found[39] / found[38] < 4
    assert 0.9 < found[40] / found[39] < 1.1


@pytest.mark.parametrize("second", [0.0, 1.0])
def test_without_a_warm_up_init_makes_them_a_node_s_own(second):
    """An inner optimizer may begin with those of an earlier run."""

    def init(params):
        adam, rest = optax.adam(0.1).init(params)
        return adam._replace(nu=jax.tree.map(lambda x: jnp.full_like(x, second), adam.nu)), rest

    inner = optax.GradientTransformation(init, optax.adam(0.1).update)
    phases = jdaso.Phases(9, 0, 3)
    with jdaso.Session(engine=jdaso.Simulated(4)) as session:
        tx = jdaso.daso(inner, phases=phases, session=session)
        state = jax.vmap(tx.init, axis_name=session.node_axis, axis_size=4, in_axes=None)(PARAMS)
    (adam, _) = state.inner
    assert all((x == 4 * second).all() for x in jax.tree.leaves(adam.nu))


def test_they_stay_those_of_all_nodes_where_nothing_cycles():
    phases = jdaso.Phases(60, 40, 20)
    found = mean_second_moments(phases)
    np.testing.assert_array_equal(found, mean_second_moments(phases, second_moments="own"))


def test_own_ones_as_before():
    """The setting "own" gives the inner optimizer unchanged."""
    problem = reference.Quadratic(20, 3)
    settings = dict(total=20, warmup=3, cooldown=4, sync_every=4, delay=2)
    with jdaso.Session(engine=jdaso.Simulated(3)) as session:
        tx = jdaso.daso(
            training.OPTIMIZERS["adamw"][1](),
            phases=jdaso.Phases(20, 3, 4, 4, 2),
            session=session,
            second_moments="own",
        )
        params, momenta, _ = training.train(session, tx, problem)
    trace = reference.daso(
        problem.x0,
        problem.gradient(),
        nodes=3,
        inner=training.OPTIMIZERS["adamw"][0],
        second_moments="own",
        stopped=training.stopped(params, 4),
        **settings,
    )
    training.assert_matches(params, momenta, trace)


def test_optimizers_without_them_are_left_alone():
    """The results have the same bits."""
    results = []
    for second_moments in ("shared", "own"):
        problem = reference.Quadratic(20, 3)
        with jdaso.Session(engine=jdaso.Simulated(3)) as session:
            tx = jdaso.daso(
                optax.sgd(0.1, momentum=0.9),
                phases=jdaso.Phases(20, 3, 4, 4, 2),
                session=session,
                second_moments=second_moments,
            )
            results.append(np.asarray(training.train(session, tx, problem)[0]))
    np.testing.assert_array_equal(*results)


def test_wrong_setting():
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        with pytest.raises(ValueError, match='"shared" or "own", got \'ours\''):
            jdaso.daso(
                optax.adam(0.1), phases=jdaso.Phases(9), session=session, second_moments="ours"
            )
