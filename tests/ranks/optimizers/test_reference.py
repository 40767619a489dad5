"""The engines that exchange over MPI against the NumPy reference, on as many ranks as there are.

Run it as ``mpiexec -n 3 python -m pytest tests/ranks``, or without a launcher with one node.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
import training
from jax.flatten_util import ravel_pytree
from mpi4py import MPI
from nights import at_night, rows

import jdaso
from jdaso._rules.state import init_phases

pytestmark = pytest.mark.three_nodes
COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
TOTAL, WARMUP, COOLDOWN = 20, 3, 4
ALL_PAIRS = [(b, s) for b in range(1, 9) for s in range(1, b + 1)]
NARROW_PAIRS = [(4, 2), (5, 5), (8, 3)]  # with more exchanges roundings hang on float32's last bits
MIXES = [
    pytest.param("mpi4jax", "paper", "adamw", "bfloat16", marks=pytest.mark.any_mpi),
    ("mpi4py", "outer", "sgd", "int4"),
    at_night(("mpi4py", "outer", "sgd", "int8")),
    at_night(("mpi4py", "paper", "adamw", "bfloat16")),
    at_night(("mpi4jax", "outer", "sgd", "int8")),
]
RULES = rows(
    [(merge, inner) for merge in ("corrected", "paper", "outer") for inner in ("sgd", "adamw")],
    day=[("corrected", "sgd")],
)


both_engines = pytest.mark.parametrize("session", ["mpi4jax", "mpi4py"], indirect=True)
one_engine = pytest.mark.parametrize("session", ["mpi4jax"], indirect=True)
the_other = pytest.mark.parametrize("session", ["mpi4py"], indirect=True)


@pytest.fixture
def session(request):
    with jdaso.Session(engine=request.param) as session:
        assert (session.node, session.num_nodes) == (RANK, SIZE)
        yield session


def daso(session, optimizer, merge, phases, **options):
    return jdaso.daso(
        training.OPTIMIZERS[optimizer][1](),
        phases=phases,
        session=session,
        merge=training.merge_of(merge),
        **options,
    )


def expected(problem, optimizer, merge, **settings):
    return reference.daso(
        problem.x0,
        problem.gradient(),
        nodes=problem.nodes,
        inner=training.OPTIMIZERS[optimizer][0],
        merge=merge,
        outer=training.OUTER[0],
        **{"total": TOTAL, "warmup": WARMUP, "cooldown": COOLDOWN, **settings},
    )


def same_on_all_nodes(tree):
    """Returns whether every node holds the same bits."""
    mine = b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))
    return len(set(COMM.allgather(mine))) == 1


def assert_equal_while_blocking(params, momenta):
    """Checks equality in the warm-up and from the third cool-down update on, not in between."""
    equal = [
        same_on_all_nodes((params[n], {name: m[n] for name, m in momenta.items()}))
        for n in range(len(params))
    ]
    assert all(equal[:WARMUP]), equal
    assert all(equal[-COOLDOWN + 2 :]), equal
    assert SIZE == 1 or not any(equal[WARMUP : -COOLDOWN - 1]), equal


@functools.cache
def runs_of_pairs(engine, merge, optimizer, wire):
    """Two runs of each of `NARROW_PAIRS`; kept, since two tests compare them."""
    problem = reference.Quadratic(TOTAL, SIZE, 600)
    with jdaso.Session(engine=engine) as session:
        tx = daso(session, optimizer, merge, jdaso.Phases(TOTAL, WARMUP, COOLDOWN), wire=wire)
        run = training.trainer(session, tx, problem, {"all": (problem.size,)})
        # B and S live in the optimizer state: one compiled run serves them all.
        begins = [init_phases(jdaso.Phases(TOTAL, WARMUP, COOLDOWN, *x)) for x in NARROW_PAIRS]
        return [(run(begin), run(begin)) for begin in begins]


@pytest.mark.users_compiler
@pytest.mark.parametrize(("engine", "merge", "optimizer", "wire"), MIXES)
def test_narrow_wires(engine, merge, optimizer, wire):
    """Parameters and momenta after each update; twice the same bits; equal nodes while blocking."""
    problem = reference.Quadratic(TOTAL, SIZE, 600)
    results = runs_of_pairs(engine, merge, optimizer, wire)
    for (sync_every, delay), (one, again) in zip(NARROW_PAIRS, results, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, again)
        params, momenta, _ = one
        settings = dict(sync_every=sync_every, delay=delay, wire=wire)
        settings["stopped"] = training.stopped(params, COOLDOWN)
        trace = expected(problem, optimizer, merge, **settings)
        training.assert_matches(params, momenta, trace, node=RANK)
        assert_equal_while_blocking(params, momenta)


@the_other
@pytest.mark.parametrize(
    ("merge", "wire", "parts", "sync_every", "delay"),
    [
        ("corrected", "float32", training.ROWS, 4, 1),
        ("outer", "int8", training.COLUMNS, (4, 2), (3, 1)),
        at_night(("paper", "bfloat16", training.COLUMNS, 4, 4)),
    ],
)
def test_fragments(session, merge, wire, parts, sync_every, delay):
    """Every fragment by itself; and `finalize` wherever the run stops."""
    size = sum(piece.size for pieces in parts.elements for piece in pieces)
    problem = reference.Quadratic(TOTAL, SIZE, size)
    phases = jdaso.Phases(TOTAL, WARMUP, COOLDOWN, sync_every, delay, fragments=parts.count)
    tx = daso(session, "sgd", merge, phases, wire=wire)
    settings = dict(sync_every=sync_every, delay=delay, wire=wire, fragments=parts.elements)
    run = training.stepper(session, tx, problem, parts.shapes)
    params, momenta, _ = run(TOTAL)
    stopped = training.stopped(params, COOLDOWN)
    trace = expected(problem, "sgd", merge, stopped=stopped, **settings)
    training.assert_matches(params, momenta, trace, node=RANK)
    assert_equal_while_blocking(params, momenta)
    stop = WARMUP + 3
    _, _, (params, state) = run(stop)
    assert SIZE == 1 or np.count_nonzero(state.ticket) > 0
    final = ravel_pytree(jdaso.finalize(params, state, session))[0]
    trace = expected(problem, "sgd", merge, steps=stop, **settings)
    wrong = np.abs(np.asarray(final) - trace.final[RANK]) > reference.tolerance(trace)
    assert not wrong.any()
    assert same_on_all_nodes(final)


@both_engines
@pytest.mark.parametrize(("merge", "optimizer"), RULES)
def test_every_distance_and_delay(session, merge, optimizer):
    """Runs all 36 pairs (B, S) with B up to 8, one exchange each; twice the same bits.

    And the statistics count what was sent.
    """
    distances, delays = zip(*ALL_PAIRS, strict=True)
    total = WARMUP + sum(distances) + 1 + COOLDOWN  # one more for the merge of the last
    problem = reference.Quadratic(total, SIZE)
    phases = jdaso.Phases(total, WARMUP, COOLDOWN, distances, delays)
    tx = daso(session, optimizer, merge, phases)
    run = training.trainer(session, tx, problem)
    params, momenta, last = run()
    stats = session.stats
    assert stats.exchanges == (len(ALL_PAIRS) if SIZE > 1 else 0)  # none in the last of cycling
    assert (stats.bytes_sent > 0) == (SIZE > 1)
    assert SIZE == 1 or 0 <= stats.hidden_share <= 1
    jax.tree.map(np.testing.assert_array_equal, (params, momenta, last), run())
    settings = dict(total=total, sync_every=distances, delay=delays)
    settings["stopped"] = training.stopped(params, COOLDOWN)
    trace = expected(problem, optimizer, merge, **settings)
    ages = [age for _, what, age in trace.events if what == "merge"]
    assert ages == (list(delays) if SIZE > 1 else [])
    training.assert_matches(params, momenta, trace, node=RANK)
    assert_equal_while_blocking(params, momenta)


@pytest.mark.any_mpi
@pytest.mark.parametrize(
    ("engine", "merge", "optimizer", "wire"),
    [
        ("mpi4jax", "paper", "adamw", "bfloat16"),
        ("mpi4py", "outer", "sgd", "int4"),
        at_night(("mpi4jax", "paper", "adamw", "float32")),
        at_night(("mpi4py", "outer", "sgd", "int8")),
    ],
)
def test_virtual_nodes_take_the_same_path(engine, merge, optimizer, wire):
    """Compares with as many virtual nodes: parameters and momenta after each update.

    Rank 0 trains the virtual ones, and has what all real ones saw.
    """
    (real, _), *_ = runs_of_pairs(engine, merge, optimizer, wire)
    everyones = COMM.gather(jax.tree.map(np.asarray, real[:2]))
    if RANK > 0:
        return
    params, momenta = jax.tree.map(lambda *x: np.stack(x, axis=1), *everyones)
    problem, (sync_every, delay) = reference.Quadratic(TOTAL, SIZE, 600), NARROW_PAIRS[0]
    phases = jdaso.Phases(TOTAL, WARMUP, COOLDOWN, sync_every, delay)
    with jdaso.Session(MPI.COMM_SELF, engine=jdaso.Simulated(SIZE)) as virtual:
        tx = daso(virtual, optimizer, merge, phases, wire=wire)
        shapes = {"all": (problem.size,)}
        virtual_params, virtual_momenta, _ = training.train(virtual, tx, problem, shapes)
    settings = dict(sync_every=sync_every, delay=delay, wire=wire)
    settings["stopped"] = training.stopped(params, COOLDOWN)
    trace = expected(problem, optimizer, merge, **settings)
    bound = 2 * reference.tolerance(trace)  # each is within one of the exact path
    assert momenta
    pairs = [(params, virtual_params), *((momenta[x], virtual_momenta[x]) for x in momenta)]
    for real, theirs in pairs:
        difference = np.abs(real - np.asarray(theirs))
        assert difference.shape == (TOTAL, SIZE, problem.size)
        assert np.all(difference <= bound), np.max(difference / bound)


@pytest.mark.parametrize(
    ("session", "blocking"),
    [
        ("mpi4jax", "gradients"),
        at_night(("mpi4py", "gradients")),
        ("mpi4py", "parameters"),
    ],
    indirect=["session"],
)
def test_a_run_that_passes_its_end_says_so_once_and_goes_on_blocking(session, blocking, caplog):
    problem = reference.Quadratic(TOTAL, SIZE)
    phases = jdaso.Phases(TOTAL - 6, 3, 3, 3, 1)
    tx = daso(session, "sgd", "paper", phases, blocking=blocking)
    params, momenta, _ = training.trainer(session, tx, problem)()
    assert all(same_on_all_nodes(x) for x in params[-6:])
    said = [r.getMessage() for r in caplog.records if "has passed total_steps" in r.getMessage()]
    assert len(said) == (SIZE > 1), said
    assert all(f"total_steps={TOTAL - 6} and goes on blocking" in text for text in said)


@both_engines
@pytest.mark.skipif(SIZE == 1, reason="a node alone takes no mean")
def test_what_finalize_and_mean_refuse_is_a_node_error(session):
    """Users need not catch an error of JAX."""
    last = jnp.full(2, jnp.nan if RANK == SIZE - 1 else 1.0)
    with pytest.raises(jdaso.NodeError, match=rf"not finite .*: node {SIZE - 1}, leaf \['w'\]"):
        jdaso.finalize({"w": last}, (), session)
    np.testing.assert_array_equal(jdaso.mean(jnp.float32(RANK), session), (SIZE - 1) / 2)


@pytest.mark.nightly  # test_narrow_wires has as many elements
@the_other
def test_every_element_is_equal_from_the_third_cool_down_update_on(session):
    problem = reference.Quadratic(TOTAL, SIZE, 600)
    tx = daso(session, "adamw", "paper", jdaso.Phases(TOTAL, WARMUP, COOLDOWN, 8, 3))
    params, _, _ = training.train(session, tx, problem, {"all": (problem.size,)})
    assert all(same_on_all_nodes(params[n]) for n in range(TOTAL - COOLDOWN + 2, TOTAL))


@the_other
def test_averaging_parameters_in_blocking_phases(session):
    problem = reference.Quadratic(TOTAL, SIZE)
    phases = jdaso.Phases(TOTAL, WARMUP, COOLDOWN, 4, 3)
    tx = daso(session, "adamw", "paper", phases, blocking="parameters")
    params, momenta, _ = training.train(session, tx, problem)
    trace = expected(problem, "adamw", "paper", sync_every=4, delay=3, blocking="parameters")
    training.assert_matches(params, momenta, trace, node=RANK)
    assert same_on_all_nodes((params[-1], params[0]))


@pytest.mark.parametrize(
    ("session", "wire"),
    [("mpi4jax", "float32"), ("mpi4py", "int4"), at_night(("mpi4py", "int8"))],
    indirect=["session"],
)
def test_finalize_wherever_the_run_stops(session, wire):
    """Parameters are bitwise equal on all nodes, exchanges in flight merged at their true age."""
    lengths = dict(total=100, warmup=1, cooldown=0, sync_every=4, delay=3)
    phases = jdaso.Phases(100, 1, 0, 4, 3)
    tx = daso(session, "sgd", "paper", phases, wire=wire)
    unravel = training.unravel_of(training.SHAPES)
    problem = reference.Quadratic(6, SIZE)
    gradient = problem.gradient()

    @jax.jit
    def step(params, state, pull):
        grads = unravel(jnp.asarray(problem.curvature) * ravel_pytree(params)[0] - pull)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = unravel(jnp.asarray(problem.x0))
    untouched = jdaso.finalize(params, tx.init(params), session)  # nothing was traced yet
    np.testing.assert_allclose(ravel_pytree(untouched)[0], problem.x0, rtol=1e-6)
    for stop in (1, 2, 3, 4, 5, 6):
        params = unravel(jnp.asarray(problem.x0))
        state = tx.init(params)
        for n in range(stop):
            params, state = step(params, state, problem.pull[n, RANK])
        in_flight = bool(state.ticket.any())
        final = ravel_pytree(jdaso.finalize(params, state, session))[0]
        trace = reference.daso(
            problem.x0,
            gradient,
            nodes=SIZE,
            inner=training.OPTIMIZERS["sgd"][0],
            merge="paper",
            steps=stop,
            wire=wire,
            leaves=training.SIZES,
            **lengths,
        )
        assert in_flight == (SIZE > 1 and stop in (2, 3, 4, 6))
        assert same_on_all_nodes(final)
        wrong = np.abs(np.asarray(final) - trace.final[RANK]) > reference.tolerance(trace)
        assert not wrong.any(), f"after {stop} updates"


@pytest.mark.users_compiler
@pytest.mark.parametrize(
    ("session", "blocking"),
    [("mpi4jax", "gradients"), ("mpi4py", "parameters")],
    indirect=["session"],
)
def test_synchronous_is_one_process_on_the_joined_batch(session, blocking):
    """Linear regression, rank r's batch being rows r of the whole."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(30, SIZE, 4, 5)).astype(np.float32)
    truth = generator.normal(size=5).astype(np.float32)
    targets = inputs @ truth + generator.normal(size=(30, SIZE, 4)).astype(np.float32)

    def loss(x, batch):
        a, b = batch
        return jnp.mean((a.reshape(-1, 5) @ x - b.reshape(-1)) ** 2)

    def train(tx, batches):
        def step(carry, batch):
            x, state = carry
            value, grads = jax.value_and_grad(loss)(x, batch)
            updates, state = tx.update(grads, state, x, value=value)
            return (optax.apply_updates(x, updates), state), x

        x = jnp.zeros(5)
        (x, state), history = jax.jit(lambda batches: jax.lax.scan(step, (x, tx.init(x)), batches))(
            batches
        )
        return np.stack([*history[1:], x]), state

    inner = optax.sgd(0.05, momentum=0.5)
    tx = jdaso.synchronous(inner, session=session, blocking=blocking)
    ours, state = train(tx, (inputs[:, RANK], targets[:, RANK]))
    joined, _ = train(optax.with_extra_args_support(inner), (inputs, targets))
    # A gradient is a sum of 4 * SIZE products of numbers up to 10, in another order.
    bound = 30 * 8 * SIZE * 10 * np.finfo(np.float32).eps
    np.testing.assert_allclose(ours, joined, rtol=0, atol=bound)
    assert same_on_all_nodes((ours, state))
    if SIZE == 1:
        np.testing.assert_array_equal(ours, joined)


@one_engine
def test_synchronous_with_narrow_wires(session):
    """All nodes have the same bits, and a step's rounding error comes with the next."""
    # Without error feedback int8 would lose all of the small number, more than the bound, in 200
    # steps; the others' bounds are wider than what they could lose in so many.
    of_wire = {"bfloat16": (2.0**-8, 40), "int8": (1 / 254, 200), "int4": (1 / 14, 40)}
    for wire, (unit, steps) in of_wire.items():
        tx = jdaso.synchronous(optax.sgd(1.0), session=session, wire=wire)
        gradients = jnp.array([1e-3, 1.0]) * (RANK + 1)

        def run(tx=tx, gradients=gradients, steps=steps):
            x = jnp.zeros(2)

            def step(carry, _):
                x, state = carry
                updates, state = tx.update(gradients, state, x)
                return (optax.apply_updates(x, updates), state), None

            return jax.lax.scan(step, (x, tx.init(x)), length=steps)[0][0]

        x = jax.jit(run)()
        mean = (SIZE + 1) / 2
        owed = 4 * unit * SIZE + steps * steps * mean * np.finfo(np.float32).eps
        np.testing.assert_allclose(x, -steps * mean * np.array([1e-3, 1.0]), atol=owed)
        assert same_on_all_nodes(x)


@both_engines
def test_broadcast_and_mean(session):
    tree = {"a": jnp.arange(3.0) + RANK, "int": jnp.int32(RANK), "scalar": jnp.float32(RANK)}
    first = jdaso.broadcast(tree, session)
    np.testing.assert_array_equal(first["a"], np.arange(3.0))
    assert int(first["int"]) == 0 and same_on_all_nodes(first)
    for average in (lambda t: jdaso.mean(t, session), jax.jit(lambda t: jdaso.mean(t, session))):
        mean = average(tree)
        np.testing.assert_allclose(mean["a"], np.arange(3.0) + (SIZE - 1) / 2, rtol=1e-6)
        assert int(mean["int"]) == RANK, "integers are not averaged"
        assert same_on_all_nodes((mean["a"], mean["scalar"]))


def test_instant_sends_nothing():
    """Each node receives its own rows P times: with equal weights a run of P equal nodes."""
    problem = reference.Quadratic(TOTAL, SIZE)
    phases = jdaso.Phases(TOTAL, WARMUP, COOLDOWN, 4, 2)
    with jdaso.Session(engine="instant") as session:
        tx = daso(session, "sgd", "paper", phases)
        params, momenta, _ = training.train(session, tx, problem)
        assert session.stats.bytes_sent == 0
    alone = reference.daso(
        problem.x0,
        lambda n, p, x: problem.gradient()(n, RANK, x),
        nodes=SIZE,
        inner=training.OPTIMIZERS["sgd"][0],
        merge="paper",
        total=TOTAL,
        warmup=WARMUP,
        cooldown=COOLDOWN,
        sync_every=4,
        delay=2,
    )
    training.assert_matches(params, momenta, alone, node=RANK)
