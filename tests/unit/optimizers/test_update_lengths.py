"""Updates of a fixed length: in which optimizers they are found, and their factor in training."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from nights import rows

import jdaso
from jdaso._optimizers.find_lengths import LengthsFinder
from jdaso._optimizers.find_moments import MomentsFinder
from jdaso._optimizers.inner import update_with

PARAMS = {"a": jnp.ones((8, 12)), "b": jnp.ones(5), "c": jnp.ones((3, 4), jnp.bfloat16)}
LABELS = {"a": "muon", "b": "sgd", "c": "sgd"}
OF_TWO = optax.partition({"muon": optax.contrib.muon(0.1), "sgd": optax.sgd(0.1)}, LABELS)
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 0.1, 100, 1000)
CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.lion(SCHEDULE))
MASKED = optax.lion(0.1, weight_decay=0.1, mask={"a": True, "b": False, "c": True})
INJECTED = optax.inject_hyperparams(optax.lion)(learning_rate=0.1)


@pytest.mark.parametrize(
    ("inner", "leaves"),
    [
        pytest.param(optax.contrib.muon(0.1), (0, 2), id="muon"),
        pytest.param(optax.lion(0.1), (0, 1, 2), id="lion"),
        pytest.param(OF_TWO, (0,), id="labels of all parameters"),
        pytest.param(CLIPPED, (0, 1, 2), id="clipped, and a schedule from 0"),
        pytest.param(INJECTED, (0, 1, 2), id="injected"),
        pytest.param(optax.contrib.muon(0.1, adaptive=True), (), id="as long as gradients"),
        pytest.param(optax.sgd(0.1, momentum=0.9), (), id="sgd"),
        pytest.param(optax.adam(0.1), (), id="second moments"),
        pytest.param(optax.scale_by_adan(), (), id="adan"),
    ],
)
def test_found(inner, leaves):
    found = LengthsFinder(inner.init, update_with(inner)).find(PARAMS)
    assert found.leaves == leaves and not found.failure


def mean_of_gradients():
    """A record like Lion's whose updates are averages: long if gradients agree, else short."""

    def init(params):
        return optax.ScaleByLionState(
            jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params)
        )

    def update(grads, state, params=None):
        del params
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mu, grads)
        return mu, state._replace(mu=mu)

    return optax.GradientTransformation(init, update)


def test_complex_parameters_keep_their_own():
    """Their change has an axis more, of real and imaginary parts."""
    params, inner = {"a": jnp.ones(5), "z": jnp.ones(3, jnp.complex64)}, optax.lion(0.1)
    assert LengthsFinder(inner.init, update_with(inner)).find(params).leaves == (0,)


def test_averages_of_gradients_have_no_fixed_length():
    inner = mean_of_gradients()
    assert LengthsFinder(inner.init, update_with(inner)).find(PARAMS).leaves == ()


def trained(inner, grads, nodes=4, fragments=1, start=None, **options):
    """Parameters of all nodes after each update, ``[steps, nodes, ...]``, and the last state."""
    steps = len(grads)
    phases = jdaso.Phases(steps, 4, 4, sync_every=4, delay=1, fragments=fragments)
    with jdaso.Session(engine=jdaso.Simulated(nodes)) as session:
        tx = jdaso.daso(inner, phases=phases, session=session, **options)

        def run(grads):
            params = {"w": jnp.ones((24, 20)) if start is None else start}

            def step(carry, grad):
                params, state = carry
                updates, state = tx.update({"w": grad}, state, params)
                params = optax.apply_updates(params, updates)
                return (params, state), params["w"]

            (_, state), all_params = jax.lax.scan(step, (params, tx.init(params)), grads)
            return all_params, state

        run = jax.vmap(run, in_axes=1, out_axes=(1, 0), axis_name=session.node_axis)
        found, state = jax.jit(run)(grads)
        return np.asarray(found), state


def noise(steps, nodes=4, shape=(24, 20)):
    return np.random.default_rng(0).normal(size=(steps, nodes, *shape)).astype(np.float32)


LENGTHS = {"lion": optax.lion(1e-3, weight_decay=0), "muon": optax.contrib.muon(1e-2)}


@pytest.mark.parametrize(
    ("name", "fragments"),
    rows(itertools.product(LENGTHS, [1, 4]), day=[("lion", 1), ("muon", 4)]),
)
def test_the_mean_of_nodes_moves_as_far_as_one(name, fragments):
    """Under noise alone the mean of 4 updates is half as long as one; the factor doubles it."""
    grads = noise(160)
    found = {
        kind: trained(LENGTHS[name], grads, update_lengths=kind, fragments=fragments)[0]
        for kind in ("shared", "own")
    }
    moved = {kind: np.diff(x.mean(1), axis=0)[80:150] for kind, x in found.items()}
    length = {kind: np.linalg.norm(x, axis=(1, 2)).mean() for kind, x in moved.items()}
    assert 1.8 < length["shared"] / length["own"] < 2.05


def test_equal_nodes_train_as_one():
    """The factor stays 1, bit for bit."""
    grads = np.repeat(noise(40, 1), 4, 1)
    inner = optax.lion(1e-3)
    shared, own = (trained(inner, grads, update_lengths=x)[0] for x in ("shared", "own"))
    np.testing.assert_array_equal(shared, own)


def test_blocking_updates_keep_their_length():
    """After cycling all nodes make the inner optimizer's own steps again."""
    grads = noise(80)
    params, state = trained(optax.lion(1e-3, weight_decay=0), grads)
    assert float(np.min(state.lengths[0].factor)) > 1.5
    steps = np.abs(np.diff(params[-3:], axis=0))
    np.testing.assert_allclose(steps, 1e-3, rtol=1e-3)


def by_hand(grads, nodes, every, steps, warmup, cooldown, rate):
    """Sign descent with late merges and the factor of lengths, written out in NumPy."""
    x = np.ones((nodes, *grads.shape[2:]), np.float64)
    factor, target, sent, started = np.zeros(nodes), None, None, None
    history = []
    for n in range(steps):
        blocking = n < warmup or n >= steps - cooldown
        g = np.repeat(grads[n].mean(0, keepdims=True), nodes, 0) if blocking else grads[n]
        scale = np.ones(nodes) if blocking else np.maximum(factor, 1)
        x = x - rate * scale[:, None, None] * np.sign(g)
        if not blocking:
            last = n == steps - cooldown - 1
            if started is not None and (n - started >= 1 or last):
                new = sent.mean(0)
                if target is not None:
                    own = np.linalg.norm((sent - target).reshape(nodes, -1), axis=1)
                    both = np.linalg.norm(new - target)
                    factor = np.clip(0.9 * factor + 0.1 * own / both, 1, np.sqrt(nodes))
                else:
                    factor = np.ones(nodes)
                x, target, started = x + (new - sent), new, None
            if last:
                x = np.repeat(x.mean(0, keepdims=True), nodes, 0)
            elif (n - warmup) % every == 0:
                sent, started = x.copy(), n
        history.append(x)
    return np.array(history)


def test_against_numpy():
    """Every update of 4 nodes, of which each has its own factor.

    With b1 = b2 = 0 Lion is sign descent.
    """
    grads = noise(60)
    found, _ = trained(optax.lion(1e-3, b1=0.0, b2=0.0, weight_decay=0), grads)
    expected = by_hand(grads, 4, 4, 60, 4, 4, 1e-3)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_wrong_setting_is_refused():
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        with pytest.raises(ValueError, match='update_lengths must be "shared" or "own", got'):
            jdaso.daso(
                optax.lion(0.1), phases=jdaso.Phases(9), session=session, update_lengths="ours"
            )


@pytest.mark.parametrize("merge", ["paper", jdaso.outer(optax.sgd(0.7))], ids=["paper", "outer"])
def test_other_merge_rules_keep_their_own(merge):
    grads = noise(24)
    shared, own = (
        trained(optax.lion(1e-3), grads, merge=merge, update_lengths=x)[0]
        for x in ("shared", "own")
    )
    np.testing.assert_array_equal(shared, own)


def test_state_is_empty_without_such_updates():
    assert trained(optax.adam(1e-3), noise(12))[1].lengths == ()


def test_leaves_that_are_none_change_nothing():
    """Each length is its own parameter's, whatever None comes before it."""
    leaves = {"a": jnp.ones((6, 4)), "c": jnp.ones(9), "e": jnp.ones((3, 3))}
    phases = jdaso.Phases(16, 2, 2, sync_every=2, delay=1, fragments=1)
    ends = []
    for extra in ({}, {"b": None, "d": None}):
        with jdaso.Session(engine=jdaso.Simulated(3)) as session:
            tx = jdaso.daso(optax.lion(0.1, weight_decay=0.0), phases=phases, session=session)

            def run(seed, tx=tx, extra=extra):
                def step(carry, key):
                    params, state = carry
                    keys = zip(leaves, jax.random.split(key, 3), strict=True)
                    scales = {"a": 1.0, "c": 0.0, "e": 3.0}  # of what all nodes have in common
                    grads = {
                        k: scales[k] + jax.random.normal(one, leaves[k].shape) for k, one in keys
                    }
                    updates, state = tx.update(grads | extra, state, params)
                    return (optax.apply_updates(params, updates), state), None

                params = leaves | extra
                carry = params, tx.init(params)
                return jax.lax.scan(step, carry, jax.random.split(jax.random.key(seed), 16))[0]

            params, state = jax.vmap(run, axis_name=session.node_axis)(jnp.arange(3))
            ends.append({k: params[k] for k in leaves})
    assert float(jnp.max(state.lengths[0].factor)) > 1.2
    jax.tree.map(np.testing.assert_array_equal, *ends)


def test_an_init_that_cannot_be_traced_is_left_alone():
    def init(params):
        return optax.ScaleByLionState(
            np.zeros([], np.int32), jax.tree.map(lambda x: np.zeros_like(np.asarray(x)), params)
        )

    inner = optax.GradientTransformation(init, lambda grads, state, params=None: (grads, state))
    for kind in (LengthsFinder, MomentsFinder):
        assert kind(init, update_with(inner)).find(PARAMS).failure


@pytest.mark.parametrize(
    ("inner", "decayed"),
    [
        pytest.param(optax.lion(0.1, weight_decay=0.0), (), id="none"),
        pytest.param(optax.lion(SCHEDULE, weight_decay=0.1), (0, 1, 2), id="a schedule from 0"),
        pytest.param(optax.contrib.muon(0.1, weight_decay=0.1), (0, 2), id="muon"),
        pytest.param(MASKED, (0, 2), id="mask"),
        pytest.param(
            optax.chain(optax.lion(0.1, weight_decay=0.0), optax.scale_by_trust_ratio(1.0)),
            (),
            id="lengths of the parameters",
        ),
    ],
)
def test_weight_decay_is_found(inner, decayed):
    assert LengthsFinder(inner.init, update_with(inner)).find(PARAMS).decayed == decayed


def test_weight_decay_is_not_longer():
    """It is the same on all nodes: their mean does not shorten it."""
    params = {"a": jnp.linspace(1.0, 2.0, 12).reshape(3, 4)}
    phases = jdaso.Phases(20, 2, 2, sync_every=8, delay=2)
    inner = optax.lion(0.1, weight_decay=0.5)
    grads = jax.random.normal(jax.random.key(0), (4, 3, 4))
    with jdaso.Session(engine=jdaso.Simulated(4)) as session:
        tx = jdaso.daso(inner, phases=phases, session=session)

        def run(grad):
            state = tx.init(params)
            for _ in range(4):  # the last one neither starts nor merges
                lengths = tuple(x._replace(factor=2 + 0 * x.factor) for x in state.lengths)
                state = state._replace(lengths=lengths)
                own = inner.update({"a": grad}, state.inner, params)[0]
                found, state = tx.update({"a": grad}, state, params)
            return own["a"], found["a"]

        own, found = jax.jit(jax.vmap(run, axis_name=session.node_axis))(grads)
    decay = -0.1 * 0.5 * params["a"]
    np.testing.assert_allclose(found, decay + 2 * (own - decay), rtol=1e-5)
