"""The scaled warm-up, and the factor that follows the nodes' mean loss."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso

PHASES = jdaso.Phases(total_steps=40, warmup_steps=6, cooldown_steps=6, sync_every=4, delay=2)
WINDOW = 4


@pytest.mark.strict_dtypes
def test_scaled_warmup_is_its_formula():
    decay = optax.exponential_decay(1.0, 10, 0.5)
    rate = jdaso.scaled_warmup(
        0.2, batch_size=1024, base_batch_size=128, warmup_steps=20, then=decay
    )
    counts = jnp.arange(60)
    expected = [
        0.2 * (1 + 7 * n / 20) if n < 20 else 8 * 0.2 * 0.5 ** ((n - 20) / 10) for n in range(60)
    ]
    with jax.numpy_dtype_promotion("standard"):  # optax's schedules promote
        got = jax.jit(jax.vmap(rate))(counts)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_scaled_warmup_without_steps_or_a_larger_batch():
    assert float(jdaso.scaled_warmup(0.1, batch_size=512, warmup_steps=0)(0)) == pytest.approx(0.2)
    same = jdaso.scaled_warmup(0.1, batch_size=256, warmup_steps=9)
    assert [float(same(n)) for n in (0, 4, 9, 99)] == pytest.approx([0.1] * 4)


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(base_rate=0.0), "base_rate must be more than 0, got 0.0"),
        (dict(batch_size=0), "batch_size counts samples and must be at least 1, got 0"),
        (dict(base_batch_size=-1), "base_batch_size counts samples"),
        (dict(warmup_steps=-1), "warmup_steps must be at least 0, got -1"),
    ],
)
def test_scaled_warmup_refuses(given, message):
    with pytest.raises(ValueError, match=message):
        jdaso.scaled_warmup(**(dict(base_rate=0.1, batch_size=256, warmup_steps=5) | given))


def inner_of(**settings):
    settings = dict(patience=1, factor=0.5, rtol=0.0, atol=1e-3) | settings
    return optax.chain(optax.sgd(1.0), jdaso.reduce_on_plateau(WINDOW, **settings))


def factors(make, losses, weights=None, params=1.0):
    """Factor in force after each update on each virtual node, ``[steps, nodes]``."""
    nodes = losses.shape[1]
    with jdaso.Session(engine=jdaso.Simulated(nodes)) as session:
        tx = make(session)

        def run(losses, weights):
            def step(state, at):
                loss, weight = at
                more = {} if weight is None else {"weight": weight}
                _, state = tx.update(jnp.zeros(3), state, jnp.full(3, params), value=loss, **more)
                return state, optax.tree.get(state, "plateau").scale

            return jax.lax.scan(step, tx.init(jnp.full(3, params)), (losses, weights))[1]

        axes = (1, None if weights is None else 1)
        run = jax.vmap(run, in_axes=axes, out_axes=1, axis_name=session.node_axis)
        return np.asarray(jax.jit(run)(jnp.asarray(losses), weights))


def daso(session, **settings):
    return jdaso.daso(inner_of(), phases=PHASES, session=session, **settings)


def synchronous(session, **settings):
    return jdaso.synchronous(inner_of(), session=session, **settings)


MAKERS = {
    "daso": daso,
    "daso-parameters": lambda session: daso(session, blocking="parameters"),
    "synchronous": synchronous,
    "synchronous-parameters": lambda session: synchronous(session, blocking="parameters"),
}
every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@every_maker
def test_all_nodes_decide_alike_by_the_mean(make):
    fall = np.linspace(1, 0, 40, dtype=np.float32)
    # Node 0 improves all the time, the others get worse by as much: the mean stands still.
    flat = factors(make, np.stack([1 + 2 * fall, 2 - fall, 2 - fall], axis=1))
    assert (flat == flat[:, :1]).all()
    assert flat[-1, 0] <= 0.5**4, "a loss that stands still lowers the factor"
    # Node 0 gets worse, the mean improves.
    better = factors(make, np.stack([2 - fall, 1 + 3 * fall, 1 + 3 * fall], axis=1))
    assert (better == 1).all()


@every_maker
def test_of_one_node_it_is_optax(make):
    losses = np.random.default_rng(0).uniform(1, 2, 40).astype(np.float32)
    rule = optax.contrib.reduce_on_plateau(0.5, 1, 0.0, 1e-3, accumulation_size=WINDOW)
    state, expected = rule.init(jnp.zeros(3)), []
    for loss in losses:
        _, state = rule.update(jnp.zeros(3), state, value=loss)
        expected.append(state.scale)
    assert len(set(map(float, expected))) > 3
    with jdaso.Session() as session:
        tx, got = make(session), []
        state = tx.init(jnp.zeros(3))
        for loss in losses:
            _, state = jax.jit(tx.update)(jnp.zeros(3), state, jnp.zeros(3), value=loss)
            got.append(optax.tree.get(state, "plateau").scale)
    np.testing.assert_array_equal(got, expected)


def test_every_loss_of_the_cycling_phase_counts_once():
    """Compares with window means in NumPy: a merge brings the losses up to the exchange's start."""
    losses = np.random.default_rng(1).uniform(1, 2, (40, 3)).astype(np.float32)
    told, since, flight, start = [None] * 41, 0, None, 6
    for n in range(40):
        if n < 6 or n >= 34:
            told[n] = losses[n].mean()
            continue
        if flight is not None and n - start == 2 or (n == 33 and flight is not None):
            told[n + 1], flight = flight, None
        if n == 6 or n - start >= 4 and n < 33:
            flight, start, since = losses[since or n : n + 1].mean(), n, n + 1
    best, factor, expected, window = np.inf, 1.0, [], []
    for n in range(40):
        window += [] if told[n] is None else [told[n]]
        if (n + 1) % WINDOW == 0 and window:
            mean, window = np.mean(window), []
            best, factor = (mean, factor) if mean < best - 1e-3 else (best, factor / 2)
        expected.append(factor)
    got = factors(daso, losses)
    np.testing.assert_array_equal(got, np.repeat(np.array(expected)[:, None], 3, 1))


def test_a_node_without_data_receives_the_others_losses():
    losses = np.full((40, 2), 2.0, np.float32)
    weights = jnp.ones((40, 2)).at[8:30, 1].set(0)
    for make in MAKERS.values():
        got = factors(make, losses, weights)
        assert (got == got[:, :1]).all() and got[-1, 0] < 0.1


@every_maker
def test_a_window_without_losses_changes_nothing(make):
    assert (factors(make, np.full((40, 2), np.nan, np.float32)) == 1).all()


def test_updates_are_scaled_in_their_dtype():
    rule = jdaso.reduce_on_plateau(1, patience=1)
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2), "frozen": jnp.arange(2)}
    state = rule.init(params)
    for _ in range(2):
        updates, state = rule.update(params, state, mean_loss=1.0)
    assert jax.tree.map(lambda u: u.dtype, updates) == jax.tree.map(lambda p: p.dtype, params)
    np.testing.assert_array_equal(updates["b"], [0.5, 0.5])


def test_it_says_where_it_belongs():
    rule = jdaso.reduce_on_plateau(4)
    with pytest.raises(ValueError, match="Put it inside jdaso.daso"):
        rule.update(jnp.zeros(3), rule.init(jnp.zeros(3)), value=1.0)
    with jdaso.Session() as session:
        tx = daso(session)
        with pytest.raises(ValueError, match="value=loss"):
            tx.update(jnp.zeros(3), tx.init(jnp.zeros(3)), jnp.zeros(3))


@pytest.mark.parametrize("name", ["window_steps", "patience"])
def test_it_refuses(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        jdaso.reduce_on_plateau(**({"window_steps": 4} | {name: 0}))
