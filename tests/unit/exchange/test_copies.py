"""Inner states that hold the parameters: parts that move with a merge, stay, or are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from nights import nightly

import jdaso
from jdaso._optimizers.copies import Finder, move, places_in_leaves
from jdaso._optimizers.inner import update_with

PHASES = jdaso.Phases(total_steps=20, warmup_steps=2, cooldown_steps=4, sync_every=4, delay=2)
PARAMS = {"a": jnp.linspace(-1, 1, 15).reshape(5, 3), "b": jnp.ones(6), "c": jnp.float32(2)}


def with_master(inner):
    """Keeps float32 weights, as is done for bfloat16 parameters."""

    def init(params):
        weights = jax.tree.map(lambda x: x.astype(jnp.float32), params)
        return weights, inner.init(weights)

    def update(grads, state, params=None):
        weights, state = state
        grads = jax.tree.map(lambda x: x.astype(jnp.float32), grads)
        updates, state = inner.update(grads, state, weights)
        weights = optax.apply_updates(weights, updates)
        lead = lambda new, old: new.astype(old.dtype) - old  # noqa: E731
        return jax.tree.map(lead, weights, params), (weights, state)

    return optax.GradientTransformation(init, update)


def ema():
    """Records an average of the parameters."""

    def update(updates, state, params=None):
        return updates, jax.tree.map(lambda e, x: 0.9 * e + 0.1 * x, state, params)

    return optax.GradientTransformation(lambda params: jax.tree.map(jnp.array, params), update)


def numpy_copy(inner):
    """An optimizer that cannot be traced, only called."""
    master = with_master(inner)

    def init(params):
        weights = jax.tree.map(lambda x: np.array(x, np.float32), params)
        return weights, inner.init(weights)

    return optax.GradientTransformation(init, master.update)


def found(inner, params=PARAMS):
    """Paths of the copies in the state, and of what they are copies of."""
    state, finder = inner.init(params), Finder(inner.init, update_with(inner))
    copies = finder.copies(jax.tree.map(jnp.ones_like, params), state, params, {}, {})
    path = lambda tree, k: jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(tree)[k][0])  # noqa: E731
    return {path(state, place): path(params, number) for place, number in copies}


SGD = optax.sgd(0.1, momentum=0.9)


def test_masters_are_found_wherever_they_are():
    """Masters are in a mini-step of eight, for some leaves, behind an average that only records."""
    inner = optax.multi_transform(
        {"master": optax.chain(ema(), with_master(SGD)), "plain": SGD},
        {"a": "master", "b": "plain", "c": "master"},
    )
    copies = found(optax.MultiSteps(inner, 8).gradient_transformation())
    assert list(copies.values()) == ["['a']", "['c']"]
    assert all("inner_state[1][0]" in path for path in copies)


def in_form(to, back):
    """Keeps the parameters in another form, and leads them back to that."""

    def update(grads, state, params=None):
        weights = jax.tree.map(lambda s, x: back(s, x), state, params)
        weights = jax.tree.map(lambda x, g: x - 0.1 * g, weights, grads)
        return jax.tree.map(jnp.subtract, weights, params), jax.tree.map(to, weights)

    return optax.GradientTransformation(lambda params: jax.tree.map(to, params), update)


@pytest.mark.parametrize(("large", "small"), [("master", "plain"), ("plain", "master")])
def test_labels_that_go_by_sizes(large, small):
    """Sizes of a few elements would give other labels, and places of other leaves."""
    labels = lambda p: jax.tree.map(lambda x: large if x.size > 13 else small, p)  # noqa: E731
    inner = optax.partition({"master": with_master(SGD), "plain": SGD}, labels)
    masters = ["['a']"] if large == "master" else ["['b']", "['c']"]
    copies = found(inner)
    assert list(copies.values()) == masters
    for path, of in copies.items():
        assert "['master']" in path and path.endswith(of)


def test_a_copy_that_comes_back_late():
    late = optax.MultiSteps(with_master(SGD), 100).gradient_transformation()
    assert list(found(late).values()) == ["['a']", "['b']", "['c']"]


@pytest.mark.parametrize(
    ("to", "back"),
    [
        (lambda x: 8 * x, lambda s, x: s / 8),
        (lambda x: x.T, lambda s, x: s.T),
        (lambda x: x.reshape(3, 5), lambda s, x: s.reshape(5, 3)),
    ],
    ids=["scaled", "turned", "of one size only"],
)
def test_a_copy_in_another_form_is_refused(to, back):
    with pytest.raises(ValueError, match=r"parameters \['a'\] \(1 of 1 leaves\)"):
        found(in_form(to, back), {"a": PARAMS["a"]})


def test_arguments_of_an_update_are_given_to_the_trial():
    """The arguments come with the first update, traced or not."""
    scaled = in_form(lambda x: 8 * x, lambda s, x: s / 8)

    def update(grads, state, params=None, *, scale):
        return scaled.update(jax.tree.map(lambda g: scale * g, grads), state, params)

    inner = optax.GradientTransformationExtraArgs(scaled.init, update)
    state, finder = inner.init(PARAMS), Finder(inner.init, update_with(inner))
    finder.at_init(PARAMS, state)
    step = lambda scale: finder.copies(PARAMS, state, PARAMS, {}, {"scale": scale})  # noqa: E731
    for call in (step, functools.partial(jax.eval_shape, step)):
        with pytest.raises(ValueError, match="3 of 3 leaves"):
            call(jnp.float32(2))


def test_masters_of_bfloat16_and_those_that_numpy_makes():
    half = {"a": jnp.linspace(-1, 1, 6).astype("bfloat16")}
    assert found(numpy_copy(SGD), half) == {"[0]['a']": "['a']"}


@pytest.mark.parametrize(
    ("inner", "name"),
    [
        (optax.contrib.schedule_free_sgd(0.1), "z"),
        (optax.contrib.cocob(), "init_particles"),
        (optax.contrib.sam(SGD, optax.sgd(0.05)), "cache"),
    ],
    ids=["schedule-free", "cocob", "sam"],
)
def test_points_to_which_parameters_are_led_back(inner, name):
    params = {"a": PARAMS["a"]}
    copies = found(inner, params)
    assert list(copies.values()) == ["['a']"] and all(name in path for path in copies)


@pytest.mark.parametrize(
    "inner",
    [
        optax.adamw(0.1, weight_decay=1.0),
        optax.chain(optax.add_decayed_weights(0.5), SGD),
        optax.chain(SGD, ema()),
        optax.contrib.dog(1.0),
        optax.contrib.prodigy(1.0, weight_decay=0.1),
        optax.lbfgs(0.1, linesearch=None),
        optax.chain(optax.add_decayed_weights(0.5), optax.rmsprop(0.1)),
        optax.chain(optax.add_decayed_weights(0.5), optax.lion(0.1)),
    ],
    ids=["weight decay", "in momentum", "average", "DoG", "Prodigy", "L-BFGS", "RMS", "Lion"],
)
def test_what_undoes_no_shift_is_left_alone(inner):
    """Covers shifts that change the length of steps, which a gradient's mean shows."""
    odd = {"c": jnp.float32(2), "d": jnp.ones((3, 3, 3)), "e": jnp.ones(1)}
    assert found(inner, {"a": PARAMS["a"], **odd}) == {}


def test_steps_that_grow_with_every_update_undo_no_shift():
    """Prodigy's step would overflow float32 if the trial's gradients were constant."""
    params = {"b": jnp.ones(1), "many": [jnp.ones((2, 2))] * 30}
    assert found(optax.contrib.prodigy(1.0, weight_decay=0.1), params) == {}


def test_adam_is_not_tried_out():
    """The trial would cost a second for each tree of parameters."""
    inner = optax.adamw(1e-3)
    finder = Finder(inner.init, update_with(inner))
    finder._undone = lambda *_: pytest.fail("was tried out")
    finder.at_init(PARAMS, inner.init(PARAMS))
    assert finder.copies(PARAMS, inner.init(PARAMS), PARAMS, {}, {}) == ()


def test_an_empty_state_holds_nothing_and_costs_no_trace():
    finder = Finder(lambda params: (), lambda *_, **__: pytest.fail("was traced"))
    finder.at_init(PARAMS, optax.EmptyState())
    assert finder.copies(PARAMS, optax.EmptyState(), PARAMS, {}, {}) == ()


def nodes(count=3):
    return jdaso.Session(engine=jdaso.Simulated(count))


def test_a_copy_in_another_form_is_refused_while_init_is_traced():
    """`optax.flatten` makes one vector of all parameters."""
    with nodes(2) as session:
        inner = optax.flatten(with_master(SGD))
        tx = jdaso.daso(inner, phases=PHASES, session=session)
        message = r"\['a'\] \(3 of 3 leaves\).*Wrap jdaso\.daso.*jdaso\.synchronous"
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(tx.init, PARAMS)
        blocking = jdaso.Phases(total_steps=8, warmup_steps=8, cooldown_steps=0)
        jax.eval_shape(jdaso.daso(inner, phases=blocking, session=session).init, PARAMS)


def trained(inner, **settings):
    """Parameters of all nodes, whose gradients pull apart."""
    with nodes() as session:
        tx = jdaso.daso(inner, phases=PHASES, session=session, **settings)

        def run(params):
            node = jax.lax.axis_index(session.node_axis)

            def step(carry, _):
                params, state = carry
                grads = jax.tree.map(lambda x: x - node, params)
                updates, state = tx.update(grads, state, params)
                params = optax.apply_updates(params, updates)
                return (params, state), params

            return jax.lax.scan(step, (params, tx.init(params)), length=20)[1]

        spread = jax.tree.map(lambda x: jnp.stack([x] * 3), PARAMS)
        return jax.jit(jax.vmap(run, axis_name=session.node_axis))(spread)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="corrected", marks=nightly),
        pytest.param(dict(merge=jdaso.outer(optax.sgd(0.7)), wire="int8"), id="outer, int8"),
    ],
)
def test_a_float32_copy_of_float32_parameters_changes_nothing(settings):
    """Compares all steps, including exact means that add the error feedback of a narrow wire."""
    expected, actual = trained(SGD, **settings), trained(with_master(SGD), **settings)
    for want, got in zip(*map(jax.tree.leaves, (expected, actual)), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_schedule_free_goes_on_from_where_a_merge_took_it():
    """The mean of the nodes follows from the nodes' mean gradient: all is linear here."""
    inner = functools.partial(optax.contrib.schedule_free_sgd, 0.05)
    actual = trained(inner())
    state = inner().init(PARAMS)
    params = PARAMS
    for n in range(20):
        grads = jax.tree.map(lambda x: x - 1.0, params)
        updates, state = inner().update(grads, state, params)
        params = optax.apply_updates(params, updates)
        for want, got in zip(*map(jax.tree.leaves, (params, actual)), strict=True):
            np.testing.assert_allclose(np.mean(got[:, n], axis=0), want, rtol=0, atol=1e-4)
    gap = lambda n: float(np.ptp(actual["b"][:, n], axis=0).max())  # noqa: E731
    # Each merge (every four updates, from 4 on) brings the nodes as close as the one before.
    assert abs(gap(12) - gap(8)) < 0.02 * gap(8) and gap(8) < 0.5 * gap(7)


def test_places_among_leaves_that_are_exchanged():
    """Skips counts, keys and empty leaves; error feedback is added by these places."""
    state = [jnp.zeros((), int), jnp.ones(2), jnp.zeros(0), jax.random.key(0), jnp.ones(3)]
    assert places_in_leaves(state, ((1, 5), (4, 7))) == {0: 5, 1: 7}
    moved = move(state, ((4, 0),), (jnp.full(3, 2.0),))
    np.testing.assert_array_equal(moved[4], np.full(3, 3.0))
    assert moved[1] is state[1]
