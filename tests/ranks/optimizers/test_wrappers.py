"""optax's wrappers around and inside of `daso`, between real nodes, update by update."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
import training
from jax.flatten_util import ravel_pytree
from mpi4py import MPI
from nights import at_night

import jdaso

pytestmark = [pytest.mark.any_mpi, pytest.mark.two_nodes]
RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
TOTAL, WARMUP, COOLDOWN, SYNC_EVERY, DELAY = 18, 3, 4, 4, 3
RULE, INNER = training.OPTIMIZERS["sgd"]
PROBLEM = reference.Quadratic(TOTAL, SIZE)
PULLS = PROBLEM.pull[:, RANK]
unravel = training.unravel_of(training.SHAPES)


@pytest.fixture(params=[at_night("mpi4jax"), "mpi4py"])
def session(request):
    with jdaso.Session(engine=request.param, timeout_seconds=120) as session:
        yield session


def daso(session, inner, **options):
    phases = jdaso.Phases(TOTAL, WARMUP, COOLDOWN, SYNC_EVERY, DELAY)
    options = {"merge": "corrected", **options}
    return jdaso.daso(inner, phases=phases, session=session, **options)


def start(tx):
    params = unravel(jnp.asarray(PROBLEM.x0))
    return params, tx.init(params)


def gradients(params, pull):
    return unravel(jnp.asarray(PROBLEM.curvature) * ravel_pytree(params)[0] - pull)


def compiled(tx):
    @jax.jit
    def step(params, state, pull):
        updates, state = tx.update(gradients(params, pull), state, params)
        return optax.apply_updates(params, updates), state

    return step


class History:
    """Parameters and momenta after each update."""

    def __init__(self):
        self.params, self.momenta = [], []

    def add(self, params, inner):
        self.params.append(np.asarray(ravel_pytree(params)[0]))
        self.momenta.append({k: np.asarray(v) for k, v in training.floats(inner).items()})

    def assert_matches_the_reference(self):
        params = np.stack(self.params)
        trace = reference.daso(
            PROBLEM.x0,
            PROBLEM.gradient(),
            nodes=SIZE,
            inner=RULE,
            total=TOTAL,
            warmup=WARMUP,
            cooldown=COOLDOWN,
            sync_every=SYNC_EVERY,
            delay=DELAY,
            merge="corrected",
            stopped=training.stopped(params, COOLDOWN),
        )
        momenta = {name: np.stack([m[name] for m in self.momenta]) for name in self.momenta[0]}
        training.assert_matches(params, momenta, trace, node=RANK)


def test_multi_steps(session):
    """Two gradients an update: `daso` on their mean, through all phases.

    optax calls the update for each and throws the first away, so each exchange happens twice.
    """
    tx = optax.MultiSteps(daso(session, INNER()), every_k_schedule=2)
    step, history = compiled(tx), History()
    params, state = start(tx)
    apart = np.random.default_rng(9).normal(size=PULLS.shape).astype(np.float32)
    for pull, more in zip(PULLS, apart, strict=True):
        before = params
        params, state = step(params, state, pull + more)
        jax.tree.map(np.testing.assert_array_equal, params, before)
        params, state = step(params, state, pull - more)
        history.add(params, state.inner_opt_state.inner)
    history.assert_matches_the_reference()
    assert step._cache_size() == 1, "compiled again on the way"
    assert int(state.inner_opt_state.step) == TOTAL
    if SIZE > 1:  # starts in updates 3, 7 and 11
        assert session.stats.exchanges == 2 * 3


def test_multi_steps_that_end_with_an_exchange_in_flight(session):
    """`finalize` finds it in the wrappers' state; "corrected" loses no gradient."""
    tx = optax.MultiSteps(daso(session, optax.sgd(1.0)), every_k_schedule=2)
    updates = WARMUP + 2
    params, state = {"x": jnp.zeros(3)}, tx.init({"x": jnp.zeros(3)})

    @jax.jit
    def step(params, state, gradient):
        changes, state = tx.update({"x": jnp.full(3, gradient)}, state, params)
        return optax.apply_updates(params, changes), state

    for n in range(2 * updates):
        params, state = step(params, state, jnp.float32(2 * RANK + n % 2))
    assert bool(state.inner_opt_state.ticket.any()) == (SIZE > 1)
    final = jdaso.finalize(params, state, session)
    np.testing.assert_allclose(final["x"], -updates * (SIZE - 1 + 0.5), rtol=1e-5)


@pytest.mark.several
def test_gradients_from_a_program_without_host_calls(session):
    """Exports the gradients (`jax.export`) without the update; the bits are those of one program.

    (One node's update has no conditions: XLA fuses it with the gradients, and rounds otherwise.)
    """
    about = jax.eval_shape(lambda: (unravel(jnp.asarray(PROBLEM.x0)), jnp.asarray(PULLS[0])))
    exported = jax.export.export(jax.jit(gradients))(*about)
    assert "custom_call" not in exported.mlir_module()
    tx, ends = daso(session, optax.adam(0.1), wire="int8"), []
    whole = compiled(tx)

    @jax.jit
    def update(grads, state, params):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def apart(params, state, pull):
        return update(exported.call(params, pull), state, params)

    for step in (whole, apart):
        params, state = start(tx)
        for pull in PULLS:
            params, state = step(params, state, pull)
        ends.append((params, state.inner))
    jax.tree.map(np.testing.assert_array_equal, *ends)


def test_inside_of_cond(session):
    """Updates that all nodes leave out are as if they had not been called."""
    tx = daso(session, INNER())
    step, history = compiled(tx), History()

    @jax.jit
    def maybe(wanted, *args):
        return jax.lax.cond(wanted, step, lambda params, state, _: (params, state), *args)

    params, state = start(tx)
    for n, pull in enumerate(PULLS):
        if n % 3 == 1:
            params, state = maybe(False, params, state, pull)
        params, state = maybe(True, params, state, pull)
        history.add(params, state.inner)
    history.assert_matches_the_reference()


def test_hyperparameters_in_the_inner_state(session):
    """Hyperparameters are averaged with the state, and keep their values."""
    inner = optax.inject_hyperparams(optax.sgd)(learning_rate=RULE.rate, momentum=RULE.momentum)
    tx = daso(session, inner)
    step, history = compiled(tx), History()
    params, state = start(tx)
    for pull in PULLS:
        params, state = step(params, state, pull)
        history.add(params, state.inner.inner_state)
        rates = state.inner.hyperparams
        np.testing.assert_allclose(rates["learning_rate"], RULE.rate, rtol=1e-6)
        np.testing.assert_allclose(rates["momentum"], RULE.momentum, rtol=1e-6)
    history.assert_matches_the_reference()
    assert step._cache_size() == 1, "compiled again on the way"


def test_a_masked_inner_optimizer(session):
    """Frozen leaves stay, and the others train as if those were not there."""
    train = {name: name != "bias" for name in training.SHAPES}
    freeze = {name: not wanted for name, wanted in train.items()}
    inner = optax.chain(optax.masked(INNER(), train), optax.masked(optax.set_to_zero(), freeze))
    masked, plain = daso(session, inner, name="masked"), daso(session, INNER())
    (params, state), (whole, whole_state) = start(masked), start(plain)
    step, whole_step = compiled(masked), compiled(plain)
    begin, bound = params["bias"], TOTAL * 8 * np.finfo(np.float32).eps
    for pull in PULLS:
        params, state = step(params, state, pull)
        whole, whole_state = whole_step(whole, whole_state, pull)
        for name, wanted in train.items():
            if wanted:
                np.testing.assert_array_equal(params[name], whole[name])
        np.testing.assert_allclose(params["bias"], begin, rtol=bound)


def test_mixed_dtypes_and_empty_leaves(session):
    """Half precision is averaged, whole numbers stay, and float32 trains as if alone."""
    mixed, plain = daso(session, INNER(), name="mixed"), daso(session, INNER())
    whole, whole_state = start(plain)
    others = {
        "half": jnp.zeros(5, jnp.bfloat16),
        "count": jnp.full(3, 7 + RANK, jnp.int32),
        "empty": jnp.zeros((0, 4)),
        "none": {},
    }
    params = {"x": whole, **others}
    # The bits of "count" differ between the nodes: `init` would say so, and a traced one does not
    # look until the first update, which looks at what travels.
    state = jax.jit(mixed.init)(params)

    def step_of(tx):
        """One of given gradients: a program rounds its own by what else it computes."""

        @jax.jit
        def step(params, state, grads):
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        return step

    step, whole_step, of = step_of(mixed), step_of(plain), jax.jit(gradients)
    for pull in PULLS:
        grads = jax.tree.map(jnp.zeros_like, params) | {"x": of(params["x"], pull)}
        grads["half"] += jnp.bfloat16(RANK)
        params, state = step(params, state, grads)
        whole, whole_state = whole_step(whole, whole_state, of(whole, pull))
        jax.tree.map(np.testing.assert_array_equal, params["x"], whole)
    np.testing.assert_array_equal(params["count"], others["count"])
    everywhere = MPI.COMM_WORLD.allgather(np.asarray(params["half"], np.float32))
    np.testing.assert_array_equal(everywhere, [everywhere[0]] * SIZE)
    assert params["half"].dtype == jnp.bfloat16
    assert (params["half"] < 0).all() == (SIZE > 1)


def test_outside_of_jit_an_inner_optimizer_may_read_numbers(session):
    adam, norms = optax.adam(1e-2), []

    def update(gradients, state, params=None, *, log=False, **_):
        updates, state = adam.update(gradients, state, params)
        if log:
            norms.append(float(optax.global_norm(updates)))
        return updates, state

    tx = daso(session, optax.GradientTransformationExtraArgs(adam.init, update))
    params, state = start(tx)
    tx.update(params, state, params, log=True)
    calls = 1 if SIZE == 1 else 2
    assert len(norms) == calls, "twice where moments are shared"
    assert norms[0] == norms[-1] > 0


@pytest.mark.several
def test_a_skip_of_one_node_in_a_mean_of_parameters_is_node_0s_for_all():
    """Adam's count sets its bias correction: left apart, equal moments give other updates."""
    inner = optax.apply_if_finite(optax.adam(0.1), max_consecutive_errors=5)
    with jdaso.Session(timeout_seconds=120) as session:
        tx = jdaso.synchronous(inner, session=session, blocking="parameters")
        params = jnp.zeros(3)
        state = tx.init(params)
        step = jax.jit(tx.update)
        for n in range(4):
            bad = np.inf if (n, RANK) == (1, SIZE - 1) else 1.0
            updates, state = step(jnp.full(3, bad), state, params)
            params = optax.apply_updates(params, updates)
            counts = MPI.COMM_WORLD.allgather(int(state.inner.inner_state[0].count))
            assert counts == [n + 1] * SIZE


@pytest.mark.parametrize("merge", ["corrected", "outer"])
def test_a_rate_that_is_set_by_hand_goes_on(merge, session):
    """`inject_hyperparams` around `daso` makes one for each program; they take turns."""
    phases = jdaso.Phases(TOTAL, WARMUP, COOLDOWN, SYNC_EVERY, DELAY, fragments=1)

    def make(rate):  # and a merge rule that is equal to no other one
        rule = jdaso.outer(optax.sgd(0.7, momentum=0.5)) if merge == "outer" else merge
        return jdaso.daso(optax.sgd(rate), phases=phases, session=session, merge=rule)

    tx = optax.inject_hyperparams(make)(rate=0.1)
    params, state = start(tx)
    step = compiled(tx)
    for n in range(TOTAL):
        state.hyperparams["rate"] = 0.1 if 6 <= n < 10 else jnp.float32(0.1)  # another program
        params, state = step(params, state, PULLS[n])
    rule = jdaso.outer(optax.sgd(0.7, momentum=0.5)) if merge == "outer" else merge
    expected = start(plain := daso(session, optax.sgd(0.1), name="plain", merge=rule))
    again = compiled(plain)
    for n in range(TOTAL):
        expected = again(*expected, PULLS[n])
    jax.tree.map(np.testing.assert_array_equal, params, expected[0])
