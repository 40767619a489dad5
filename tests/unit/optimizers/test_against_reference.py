"""Engine "simulated" against the NumPy reference, update by update."""

from itertools import product

import jax
import numpy as np
import pytest
import reference
import training
from jax.flatten_util import ravel_pytree
from nights import at_night, nightly

import jdaso
from jdaso._rules.state import init_phases

MERGES = ("paper", "corrected", "outer")
PAIRS = [(b, s) for b in range(1, 9) for s in range(1, b + 1)]
WARMUP, COOLDOWN = 3, 4


def every_rule(numbers, day):
    """Rows of all nodes, merges and optimizers; those not in `day` run at night.

    With SGD no dtype is promoted silently; optax's Adam promotes some itself.
    """
    table = list(product(numbers, MERGES, training.OPTIMIZERS))
    assert not set(day) - set(table)
    strict = pytest.mark.strict_dtypes
    marks = lambda row: [nightly] * (row not in day) + [strict] * (row[2] == "sgd")  # noqa: E731
    rows = [pytest.param(*row, marks=marks(row)) for row in table]
    return pytest.mark.parametrize(("nodes", "merge", "optimizer"), rows)


def expected(problem, optimizer, merge, **settings):
    """The reference's trace of the problem; by default a warm-up of 3 and a cool-down of 4."""
    return reference.daso(
        problem.x0,
        problem.gradient(),
        nodes=problem.nodes,
        inner=training.OPTIMIZERS[optimizer][0],
        merge=merge,
        outer=training.OUTER[0],
        **{"total": problem.steps, "warmup": WARMUP, "cooldown": COOLDOWN, **settings},
    )


def daso(session, optimizer, merge, phases, **options):
    """The transformation that should do the same."""
    return jdaso.daso(
        training.OPTIMIZERS[optimizer][1](),
        phases=phases,
        session=session,
        merge=training.merge_of(merge),
        **options,
    )


def both(nodes, optimizer, merge, sync_every, delay, cycling=13, size=24, parts=None, **options):
    """Parameters and momenta of the simulated engine, and the reference's trace."""
    total = WARMUP + cycling + COOLDOWN
    problem = reference.Quadratic(total, nodes, size)
    shapes = training.SHAPES if size == 24 else {"all": (size,)}
    if parts is not None:
        shapes = parts.shapes
    phases = jdaso.Phases(
        total, WARMUP, COOLDOWN, sync_every, delay, fragments=parts.count if parts else 1
    )
    with jdaso.Session(engine=jdaso.Simulated(nodes)) as session:
        tx = daso(session, optimizer, merge, phases, **options)
        params, momenta, _ = training.train(session, tx, problem, shapes)
    settings = dict(sync_every=sync_every, delay=delay, **options)
    if parts is not None:
        settings["fragments"] = parts.elements
    settings["stopped"] = training.stopped(params, COOLDOWN)
    return params, momenta, expected(problem, optimizer, merge, **settings)


@every_rule(
    [1, 2, 3, 4],
    day=[
        (1, "paper", "sgd"),
        (2, "paper", "adamw"),
        (3, "corrected", "sgd"),
        (3, "corrected", "adamw"),
        (3, "paper", "sgd"),
        (3, "outer", "sgd"),
        (4, "outer", "adamw"),
    ],
)
def test_every_distance_and_delay(nodes, merge, optimizer):
    """Runs all 36 pairs (B, S) with B up to 8, through all three phases.

    B and S live in the optimizer state, so one compiled run serves them all: it begins from the
    phase state of each.
    """
    total = WARMUP + 13 + COOLDOWN
    problem = reference.Quadratic(total, nodes)
    with jdaso.Session(engine=jdaso.Simulated(nodes)) as session:
        tx = daso(session, optimizer, merge, jdaso.Phases(total, WARMUP, COOLDOWN))
        run = training.trainer(session, tx, problem)
        for sync_every, delay in PAIRS:
            phases = jdaso.Phases(total, WARMUP, COOLDOWN, sync_every, delay)
            params, momenta, _ = run(init_phases(phases))
            settings = dict(sync_every=sync_every, delay=delay)
            settings["stopped"] = training.stopped(params, COOLDOWN)
            trace = expected(problem, optimizer, merge, **settings)
            training.assert_matches(params, momenta, trace)


@pytest.mark.parametrize(
    ("sync_every", "delay", "merge"),
    [at_night((1, 1, "paper")), (3, 2, "corrected"), at_night((8, 8, "outer"))],
)
def test_fixed_settings(sync_every, delay, merge):
    training.assert_matches(*both(3, "sgd", merge, sync_every, delay))


def test_settings_from_a_tuple():
    """Runs all 36 pairs, one exchange each; every merge has the age that was set."""
    distances, delays = zip(*PAIRS, strict=True)
    cycling = sum(distances) + 1  # the last exchange is merged by the last cycling update
    params, momenta, trace = both(3, "sgd", "paper", distances, delays, cycling)
    assert [age for _, what, age in trace.events if what == "merge"] == list(delays)
    training.assert_matches(params, momenta, trace)


@pytest.mark.parametrize(("nodes", "merge"), [(2, "paper"), (3, "corrected"), (4, "outer")])
def test_averaging_parameters_in_blocking_phases(nodes, merge):
    run = both(nodes, "adamw", merge, 4, 3, blocking="parameters")
    training.assert_matches(*run)


@pytest.mark.parametrize(
    ("nodes", "merge", "wire"),
    [
        (2, "paper", "bfloat16"),
        (3, "paper", "int8"),
        at_night((3, "paper", "int4")),
        at_night((4, "paper", "bfloat16")),
        at_night((2, "corrected", "bfloat16")),
        (3, "corrected", "bfloat16"),
        (4, "corrected", "int4"),
        (2, "outer", "int4"),
        at_night((4, "corrected", "int8")),
        at_night((2, "outer", "int8")),
        (3, "outer", "bfloat16"),
        at_night((4, "outer", "bfloat16")),
        (1, "paper", "int8"),
    ],
)
def test_narrow_wires(nodes, merge, wire):
    """Differences, error feedback, the second rounding by the node that adds: bit for bit ours.

    600 parameters are more than one block for each of several nodes.
    """
    run = both(nodes, "sgd", merge, 4, 2, size=600, wire=wire)
    training.assert_matches(*run)


@pytest.mark.parametrize(
    ("nodes", "optimizer", "merge", "wire", "parts", "sync_every", "delay"),
    [
        (2, "sgd", "corrected", "float32", training.ROWS, 4, 1),
        (3, "adamw", "outer", "float32", training.ROWS, 8, 5),
        (3, "sgd", "paper", "float32", training.LEAVES, 4, 4),
        (4, "sgd", "corrected", "float32", training.LEAVES, (4, 2), (3, 1)),
        (1, "sgd", "corrected", "float32", training.LEAVES, 4, 1),
        (2, "sgd", "outer", "int8", training.COLUMNS, 4, 2),
        (3, "sgd", "paper", "bfloat16", training.COLUMNS, 4, 2),
    ],
)
def test_fragments(nodes, optimizer, merge, wire, parts, sync_every, delay):
    """Every fragment by itself does what all parameters do with one: its turn, age and error."""
    size = sum(piece.size for pieces in parts.elements for piece in pieces)
    run = both(nodes, optimizer, merge, sync_every, delay, 13, size, parts, wire=wire)
    training.assert_matches(*run)


@pytest.mark.parametrize(("merge", "wire"), [("outer", "float32"), ("corrected", "int8")])
def test_finalize_merges_every_fragment_in_flight(merge, wire):
    """B = 4, S = 3, two fragments: after two to six updates one, two or one is in flight."""
    phases = jdaso.Phases(100, 1, 0, 4, 3, fragments=2)
    lengths = dict(total=100, warmup=1, cooldown=0, sync_every=4, delay=3)
    seen = set()
    with jdaso.Session(engine=jdaso.Simulated(3)) as session:
        tx = daso(session, "sgd", merge, phases, wire=wire)
        run = training.stepper(session, tx, reference.Quadratic(6, 3), training.LEAVES.shapes)
        for stop in (2, 4, 5, 6):
            problem = reference.Quadratic(stop, 3)
            settings = dict(steps=stop, wire=wire, fragments=training.LEAVES.elements, **lengths)
            trace = expected(problem, "sgd", merge, **settings)
            _, _, (params, state) = run(stop)
            seen.add(tuple((np.asarray(state.ticket[0]) != 0).tolist()))
            final = jdaso.finalize(params, state, session)
            final = np.asarray(jax.vmap(lambda tree: ravel_pytree(tree)[0])(final))
            np.testing.assert_array_equal(final, np.broadcast_to(final[:1], final.shape))
            wrong = np.abs(final - np.array(trace.final)) > reference.tolerance(trace)
            assert not wrong.any(), f"after {stop} updates"
    assert seen == {(True, False), (True, True), (False, True)}


@pytest.mark.parametrize("merge", ["paper"])
@pytest.mark.parametrize(
    "phases",
    [
        dict(total=9),  # cycling from the first update to the last
        at_night(dict(total=9, warmup=9)),
        at_night(dict(total=9, cooldown=9)),
        dict(total=9, warmup=4, cooldown=5),
        dict(total=9, warmup=4, cooldown=4),  # one cycling update
        dict(total=9, warmup=3, cooldown=4),  # two: an exchange of age 1 at most
        at_night(dict(total=9, warmup=0, cooldown=2)),
        dict(total=6, warmup=1, cooldown=1),  # and three updates past the end
    ],
    ids=str,
)
def test_phases_of_every_length(phases, merge):
    problem = reference.Quadratic(9, 3)
    settings = {"warmup": 0, "cooldown": 0, **phases}
    trace = expected(problem, "sgd", merge, sync_every=3, delay=2, steps=9, **settings)
    lengths = jdaso.Phases(settings["total"], settings["warmup"], settings["cooldown"], 3, 2)
    with jdaso.Session(engine=jdaso.Simulated(3)) as session:
        tx = daso(session, "sgd", merge, lengths)
        params, momenta, _ = training.train(session, tx, problem)
    training.assert_matches(params, momenta, trace)


@pytest.mark.parametrize(
    ("merge", "wire", "stops"),
    [
        ("paper", "float32", (2, 4, 5)),
        ("corrected", "int4", (3, 5)),
        at_night(("corrected", "int8", (3, 5))),
        ("outer", "float32", (3,)),
    ],
)
def test_finalize_wherever_the_run_stops(merge, wire, stops):
    """An exchange in flight is merged at its true age, then the exact mean; all nodes are equal.

    Exchanges start in updates 1 and 5; one is merged in update 4. So after 2, 3, 4 and 6 updates an
    exchange is in flight, of age 0, 1, 2 and 0.
    """
    lengths = dict(total=100, warmup=1, cooldown=0, sync_every=4, delay=3)
    phases = jdaso.Phases(100, 1, 0, 4, 3)
    with jdaso.Session(engine=jdaso.Simulated(3)) as session:
        tx = daso(session, "sgd", merge, phases, wire=wire)
        run = training.stepper(session, tx, reference.Quadratic(max(stops), 3))
        for stop in stops:
            problem = reference.Quadratic(stop, 3)
            settings = dict(steps=stop, wire=wire, leaves=training.SIZES, **lengths)
            trace = expected(problem, "sgd", merge, **settings)
            _, _, (params, state) = run(stop)
            final = jdaso.finalize(params, state, session)
            final = np.asarray(jax.vmap(lambda tree: ravel_pytree(tree)[0])(final))
            np.testing.assert_array_equal(final, np.broadcast_to(final[:1], final.shape))
            wrong = np.abs(final - np.array(trace.final)) > reference.tolerance(trace)
            assert not wrong.any(), f"after {stop} updates"


@pytest.mark.users_compiler
@every_rule([2, 3], day=[(2, "paper", "adamw"), (3, "outer", "sgd")])
def test_nodes_are_bitwise_equal_while_blocking(nodes, merge, optimizer):
    """Nodes are equal in the warm-up and from the third cool-down update on, not in between.

    So many parameters that some cross zero in the cool-down: there ``p + (t - p)`` rounds anew.
    """
    params, momenta, _ = both(nodes, optimizer, merge, 4, 2, size=20_000)
    params = np.asarray(params)
    differing = [int(np.any(step != step[:1], axis=0).sum()) for step in params]
    assert not any(differing[:WARMUP]), differing
    assert all(differing[WARMUP : -COOLDOWN - 1]), differing
    assert not any(differing[-COOLDOWN + 2 :]), differing
    for value in momenta.values():
        value = np.asarray(value)
        np.testing.assert_array_equal(value[:WARMUP], np.roll(value[:WARMUP], 1, axis=1))
        end = value[-COOLDOWN + 2 :]
        np.testing.assert_array_equal(end, np.roll(end, 1, axis=1))


@pytest.mark.parametrize("nodes", [at_night(5), 7, at_night(15)])
def test_few_elements_stop_in_the_third_cool_down_update(nodes):
    """Elements stop only if they would not meet, also for numbers of nodes whose mean rounds."""
    total = WARMUP + 10 + COOLDOWN
    problem = reference.Quadratic(total, nodes, 10_000)
    phases = jdaso.Phases(total, WARMUP, COOLDOWN, 4, 2)
    with jdaso.Session(engine=jdaso.Simulated(nodes)) as session:
        tx = daso(session, "adamw", "paper", phases)
        params, _, _ = training.train(session, tx, problem, {"all": (problem.size,)})
    second, third = np.asarray(params)[-COOLDOWN + 1 :][:2]
    apart = np.any(second != second[:1], axis=0)
    assert 0 < np.mean(apart) < 0.01, "nothing to stop, or too much: change the seed"
    stopped = float(np.mean(third == 0))
    assert stopped < 0.01
    np.testing.assert_array_equal(third, np.broadcast_to(third[:1], third.shape))
