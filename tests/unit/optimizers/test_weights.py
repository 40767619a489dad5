"""Means weighted by samples, and nodes that have run out of them, against plain NumPy."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from nights import at_night, rows

import jdaso

STEPS, WARMUP, COOLDOWN, EVERY, DELAY = 16, 3, 4, 3, 2
PHASES = jdaso.Phases(STEPS, WARMUP, COOLDOWN, EVERY, DELAY)
NODES, SIZE, RATE = 3, 40, 0.1
START = np.linspace(-1, 1, SIZE, dtype=np.float32)


def gradients(seed=0, nodes=NODES):
    return np.random.default_rng(seed).normal(size=(STEPS, nodes, SIZE)).astype(np.float32)


def weights_of(seed=1):
    return np.random.default_rng(seed).integers(1, 9, size=(STEPS, NODES)).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def sessions():
    """Keeps sessions open, since a compiled step serves all tests with its settings."""
    yield
    open_sessions.close()
    compiled.cache_clear()


open_sessions = contextlib.ExitStack()


@functools.cache
def compiled(make, inner, nodes):
    """The state of all virtual nodes before the first update, the compiled update, the session."""
    session = open_sessions.enter_context(jdaso.Session(engine=jdaso.Simulated(nodes)))
    tx = make(inner(), session)

    def step(params, state, grad, given):
        updates, state = tx.update({"w": grad}, state, params, **given)
        return optax.apply_updates(params, updates), state

    state = jax.tree.map(lambda x: jnp.stack([x] * nodes), tx.init({"w": jnp.asarray(START)}))
    return state, jax.jit(jax.vmap(step, axis_name=session.node_axis)), session


def sgd():
    return optax.sgd(RATE)


def adam():
    return optax.adam(1e-2)


def dropping():
    """SGD whose rate falls to a tenth in the last two updates, counted by the optimizer."""
    return optax.sgd(optax.piecewise_constant_schedule(RATE, {STEPS - 2: 0.1}))


def run(make, grads, weights, losses=None, inner=sgd, nodes=NODES):
    """Returns the parameters of each virtual node after all updates, and the states after each."""
    state, step, _ = compiled(make, inner, nodes)
    params = {"w": jnp.stack([jnp.asarray(START)] * nodes)}
    states = []
    for n in range(len(grads)):
        given = {} if weights is None else {"weight": jnp.asarray(weights[n])}
        given |= {} if losses is None else {"value": jnp.asarray(losses[n])}
        params, state = step(params, state, jnp.asarray(grads[n]), given)
        states.append(state)
    return np.asarray(params["w"]), states


@functools.cache
def maker(method, **settings):
    return lambda inner, session: method(inner, session=session, **settings)


def daso(merge="corrected", wire="float32", blocking="gradients"):
    return maker(jdaso.daso, phases=PHASES, merge=merge, wire=wire, blocking=blocking)


def synchronous(wire="float32", blocking="gradients"):
    return maker(jdaso.synchronous, wire=wire, blocking=blocking)


def reference(grads, weights, merge):
    """DASO with SGD, by its definition, in float64."""
    x = np.tile(START.astype(np.float64), (NODES, 1))
    mean = lambda w, y: (w[:, None] * y).sum(0) / w.sum()  # noqa: E731
    sent, start, since = None, None, []
    end = STEPS - COOLDOWN
    for n, (g, w) in enumerate(zip(grads.astype(np.float64), weights, strict=True)):
        if not WARMUP <= n < end:
            x = x - RATE * mean(w, g)
            if n < end + 2 and n >= end:
                x = np.tile(mean(w, x), (NODES, 1))
            continue
        x = x - RATE * g * (w > 0)[:, None]
        since.append(w)
        last = n == end - 1
        if sent is not None and (n - start >= DELAY or last):
            (snapshot, target), age = sent, n - start
            if merge == "corrected":
                x = x + target - snapshot
            else:
                x = (2 * age * x + NODES * target) / (2 * age + NODES)
            sent = None
        if last:
            x = np.tile(mean(np.mean(since, axis=0), x), (NODES, 1))
        elif n == WARMUP or n - start >= EVERY:
            sent, start = (x, mean(np.mean(since, axis=0), x)), n
            since = []
    return x


@pytest.mark.parametrize(
    ("some_run_out", "merge"),
    rows(
        itertools.product([False, True], ["corrected", "paper"]),
        day=[(False, "paper"), (True, "corrected")],
    ),
)
def test_every_mean_is_weighted(merge, some_run_out):
    grads, weights = gradients(), weights_of()
    if some_run_out:
        weights[7:, 2] = 0
        weights[9:, 0] = 0
    held, _ = run(daso(merge), grads, weights)
    np.testing.assert_allclose(held, reference(grads, weights, merge), atol=3e-6)


@pytest.mark.parametrize("wire", [at_night("bfloat16"), "int8"])
def test_narrow_wires_weigh_alike(wire):
    grads, weights = gradients(), weights_of()
    held, _ = run(daso(wire=wire), grads, weights)
    exact = reference(grads, weights, "corrected")
    np.testing.assert_allclose(held, exact, atol=0.02)
    assert np.abs(held - exact).mean() < 2e-3


@pytest.mark.parametrize(
    ("blocking", "wire"),
    rows(
        itertools.product(["gradients", "parameters"], ["float32", "int8"]),
        day=[("parameters", "float32"), ("gradients", "int8")],
    ),
)
def test_weights_of_one_change_nothing(wire, blocking):
    """float32 changes no bit; a narrow wire's programs round in another order."""
    grads, ones = gradients(), np.ones((STEPS, NODES), np.float32)
    plain, _ = run(daso(wire=wire, blocking=blocking), grads, None)
    weighed, _ = run(daso(wire=wire, blocking=blocking), grads, ones)
    np.testing.assert_allclose(weighed, plain, rtol=0, atol=0 if wire == "float32" else 1e-6)


@pytest.mark.parametrize("blocking", ["gradients", "parameters"])
def test_samples_as_weights_are_one_process_with_all_samples(blocking):
    """SGD of a linear model whose nodes hold 1, 5 and 2 samples."""
    grads, counts = gradients(), np.array([1, 5, 2], np.float32)
    held, _ = run(synchronous(blocking=blocking), grads, np.tile(counts, (STEPS, 1)))
    x = START.astype(np.float64)
    for g in grads:
        samples = np.repeat(g, counts.astype(int), axis=0)
        x = x - RATE * samples.mean(axis=0)
    np.testing.assert_allclose(held, np.tile(x, (NODES, 1)), atol=2e-6)


@pytest.mark.parametrize("make", [daso(), daso(merge="paper"), daso(wire="int8"), synchronous()])
def test_a_node_that_has_run_out_changes_nothing(make):
    """The other nodes' numbers do not depend on its gradients."""
    one, other, weights = gradients(), gradients(), weights_of()
    weights[6:, 1] = 0
    other[6:, 1] = 1000 * gradients(5)[6:, 1]
    held, _ = run(make, one, weights, inner=adam)
    again, _ = run(make, other, weights, inner=adam)
    np.testing.assert_allclose(held, again, atol=1e-6)
    assert np.isfinite(held).all()


@pytest.mark.parametrize(
    "make", [daso(), daso(blocking="parameters"), synchronous(blocking="parameters")]
)
def test_schedules_of_nodes_that_have_run_out_go_on(make):
    """Node 0, whose count all nodes take in the exact mean, has no data for most of the run."""
    grads, weights = np.ones((STEPS, NODES, SIZE), np.float32), np.ones((STEPS, NODES), np.float32)
    weights[1:8, 0] = weights[9 : STEPS - COOLDOWN, 0] = weights[2:7, 1] = 0
    held, states = run(make, grads, weights, inner=dropping)
    counts = jax.tree.leaves([optax.tree.get(state, "count") for state in states])
    np.testing.assert_array_equal(np.stack(counts), np.arange(1, STEPS + 1)[:, None] * np.ones(3))
    before, _ = run(make, grads[:-2], weights[:-2], inner=dropping)
    np.testing.assert_allclose(before - held, 0.2 * RATE, atol=1e-6)


@pytest.mark.parametrize(
    "make", [daso(), daso(blocking="parameters"), synchronous(blocking="parameters")]
)
@pytest.mark.parametrize("nodes", rows([2, 3, 4, 9], day=[2, 3, 9]))
def test_all_nodes_may_have_run_out(make, nodes):
    held, _ = run(make, gradients(nodes=nodes), np.zeros((STEPS, nodes), np.float32), nodes=nodes)
    assert np.isfinite(held).all() and np.abs(held).max() < 10


@pytest.mark.parametrize(
    ("wire", "after"),
    # In an exchange whose weights are not the usual ones a narrow wire pays more or less than it
    # owes; there is none if they run out at a start.
    [*(("float32", n) for n in (5, 6, 7, 8)), ("bfloat16", 7), ("int8", 7), ("int4", 7)],
)
def test_nothing_is_lost_where_all_have_run_out(wire, after):
    """Merges of equal weights keep the mean; the exact mean adds the error feedback at the end."""
    grads, weights = gradients(), np.ones((STEPS, NODES), np.float32)
    weights[after:] = 0
    held, _ = run(daso(wire=wire), grads, weights)
    right = START - RATE * grads[:after].astype(np.float64).mean(axis=1).sum(axis=0)
    np.testing.assert_allclose(held, np.tile(right, (NODES, 1)), atol=2e-6)


def test_the_loss_is_weighted_too():
    losses = np.random.default_rng(2).uniform(1, 2, size=(STEPS, NODES)).astype(np.float32)
    weights = weights_of()
    weights[:, 1] = 0
    _, states = run(daso(), gradients(), weights, losses)
    phase = states[0].phase
    np.testing.assert_allclose(phase.loss_weight, weights[0].sum(), rtol=1e-6)
    np.testing.assert_allclose(phase.loss_sum, (weights * losses)[0].sum(), rtol=1e-6)


@pytest.mark.parametrize("wire", ["float32", at_night("bfloat16"), "int8"])
@pytest.mark.parametrize("make", [daso, synchronous])
def test_only_the_ratios_of_weights_count(make, wire):
    """Powers of two change no bit, however many samples they count."""
    grads, weights = 30 * gradients(), weights_of()
    of_all = [np.full((STEPS, NODES), scale) for scale in (1.0, 2.0**17, 2.0**-10)]
    # The first mean does not know yet what they count, and a narrow wire rounds it otherwise.
    near = 5e-3 if make is synchronous and wire != "float32" else 1e-5
    plain, *others = (run(make(wire=wire), grads, each * 1.0)[0] for each in of_all)
    for other in others:
        np.testing.assert_allclose(other, plain, atol=near)
    parts, again = (run(make(wire=wire), grads, c * weights)[0] for c in (1.0, 2.0**-10))
    np.testing.assert_allclose(again, parts, atol=2e-2 if wire == "int8" else 1e-3)


@pytest.mark.parametrize("stops", [8, 9])
@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_run_that_stops_early_ends_in_a_weighted_mean(wire, stops):
    """`finalize` weighs as the last cycling update would, had the run been planned to end there.

    A node that has run out has followed the others by an exchange, and must not hold them back. The
    last rounding error that a narrow wire owes such a node is lost, so here all have data.
    """
    make, planned = daso(wire=wire), jdaso.Phases(stops, WARMUP, 0, EVERY, DELAY)
    grads, weights = gradients()[:stops], weights_of()[:stops]
    if wire == "float32":
        weights[6:, 1] = 0
    right, _ = run(maker(jdaso.daso, phases=planned, wire=wire), grads, weights)
    held, states = run(make, grads, weights)
    assert np.abs(held - held[0]).max() > 0.05, "the nodes have to differ"
    _, _, session = compiled(make, sgd, NODES)
    ended = jdaso.finalize({"w": jnp.asarray(held)}, states[-1], session)["w"]
    np.testing.assert_allclose(ended, right, atol=2e-6)


@pytest.mark.parametrize("scale", [1.0, 32.0])
def test_a_constant_factor_of_the_weights_does_not_move_the_plateau(scale):
    """Losses of the warm-up and of cycling steps count alike, whatever unit weights have."""
    plateau = jdaso.Phases.plateau(
        16, window_steps=4, warmup_steps=4, max_sync_every=4, max_delay=1, patience=1
    )
    losses = np.array([10.0, 1, 1, 1] + [5.0] * 12, np.float32)  # means of windows: 3.25, 5, 5, 5
    losses = np.repeat(losses[:, None], NODES, axis=1)
    weights = np.full((STEPS, NODES), scale, np.float32)
    _, states = run(maker(jdaso.daso, phases=plateau), gradients(), weights, losses)
    assert [int(x.phase.sync_every[0]) for x in states] == [4] * 7 + [2] * 4 + [1] * 4 + [4]
    np.testing.assert_allclose(states[-1].phase.best_loss, 3.25, rtol=1e-6)


def test_weight_zero_hides_numbers_that_are_not_finite():
    """An empty batch has the mean 0 / 0."""
    grads, weights = gradients(), weights_of()
    weights[2:, 1], grads[2:, 1] = 0, np.nan
    for make in (daso(), synchronous(), daso(wire="int8")):
        held, _ = run(make, grads, weights)
        assert np.isfinite(held).all()


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_synchronous_nodes_without_any_sample_keep_their_error_feedback(wire):
    """A batch that is padding alone: its gradients are 0, and nothing is sent twice."""
    gradients = jnp.asarray(np.random.default_rng(0).normal(size=(3, 40)), jnp.float32)
    with jdaso.Session(engine=jdaso.Simulated(3)) as session:
        tx = jdaso.synchronous(optax.sgd(1.0), session=session, wire=wire)

        def run(gradient):
            params = jnp.zeros(40)
            _, state = tx.update(gradient, tx.init(params), params, weight=1.0)
            updates, new = tx.update(gradient, state, params, weight=0.0)
            return updates, state.error, new.error

        updates, before, after = jax.vmap(run, axis_name=session.node_axis)(gradients)
    np.testing.assert_array_equal(updates, 0.0)
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert wire == "float32" or any(np.any(x) for x in jax.tree.leaves(before))


def test_the_loss_is_nan_where_no_nodes_is_finite():
    """Not 0, with which an optimizer that scales by the loss would stop."""

    def init(params):
        return jnp.float32(0)

    def update(updates, state, params=None, *, value, **extra):
        return updates, value

    inner = optax.GradientTransformationExtraArgs(init, update)
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        tx = jdaso.synchronous(inner, session=session)

        def run(value):
            params = jnp.zeros(2)
            return tx.update(params, tx.init(params), params, value=value)[1].inner

        losses = jax.vmap(run, axis_name=session.node_axis)
        assert np.isnan(losses(jnp.array([np.inf, np.nan]))).all()
        np.testing.assert_array_equal(losses(jnp.array([3.0, np.nan])), 3.0)


def test_nothing_to_exchange_is_finite():
    phases = jdaso.Phases(8, 2, 2, sync_every=2, delay=1)
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        tx = jdaso.daso(optax.sgd(0.1), phases=phases, session=session, on_nonfinite="skip")

        def run(_):
            params = {"n": jnp.int32(3)}
            state = tx.init(params)
            for _ in range(8):
                _, state = tx.update({"n": jnp.int32(0)}, state, params)
            return state.step

        steps = jax.jit(jax.vmap(run, axis_name=session.node_axis))(jnp.arange(2))
    np.testing.assert_array_equal(steps, 8)
