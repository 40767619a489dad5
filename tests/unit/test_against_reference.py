"""Engine "simulated" against the NumPy reference, update by update."""

import jax
import numpy as np
import pytest
import reference
import training

import jdaso

MERGES = ("paper", "corrected", "outer")
PAIRS = [(b, s) for b in range(1, 9) for s in range(1, b + 1)]
WARMUP, COOLDOWN = 3, 4


def both(nodes, optimizer, merge, sync_every, delay, cycling=13, size=24, seed=0, **options):
    """The reference's trace, and what the simulated engine made of the same problem."""
    total = WARMUP + cycling + COOLDOWN
    problem = reference.Quadratic(total, nodes, size, seed)
    ours, theirs = training.OPTIMIZERS[optimizer]
    trace = reference.daso(
        problem.x0,
        problem.gradient(),
        nodes=nodes,
        inner=ours,
        total=total,
        warmup=WARMUP,
        cooldown=COOLDOWN,
        sync_every=sync_every,
        delay=delay,
        merge=merge,
        outer=training.OUTER[0],
        **options,
    )
    shapes = training.SHAPES if size == 24 else {"all": (size,)}
    with jdaso.Session(engine="simulated", num_nodes=nodes) as session:
        tx = jdaso.daso(
            theirs(),
            phases=jdaso.Phases(total, WARMUP, COOLDOWN, sync_every, delay),
            session=session,
            merge=training.merge_of(merge),
            **options,
        )
        params, momenta, _ = training.train(session, tx, problem, shapes)
    return params, momenta, trace


@pytest.mark.parametrize("optimizer", training.OPTIMIZERS)
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_every_distance_and_delay(nodes, merge, optimizer):
    """All 36 pairs (B, S) with B up to 8, one exchange each, through all three phases."""
    distances, delays = zip(*PAIRS, strict=True)
    cycling = sum(distances) + 1  # the last exchange is merged by the last cycling update
    params, momenta, trace = both(nodes, optimizer, merge, distances, delays, cycling)
    if nodes > 1:
        assert [age for _, what, age in trace.events if what == "merge"] == list(delays)
    training.assert_matches(params, momenta, trace)


@pytest.mark.parametrize(("sync_every", "delay"), PAIRS)
def test_fixed_settings(sync_every, delay):
    """Every fixed (B, S); nodes, merge rule and optimizer taken in turn."""
    turn = PAIRS.index((sync_every, delay))
    nodes, merge = 2 + turn % 3, MERGES[turn // 3 % 3]
    optimizer = list(training.OPTIMIZERS)[turn // 9 % 2]
    training.assert_matches(*both(nodes, optimizer, merge, sync_every, delay))


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_averaging_parameters_in_blocking_phases(nodes, merge):
    run = both(nodes, "adamw", merge, 4, 3, blocking="parameters")
    training.assert_matches(*run)


@pytest.mark.parametrize("wire", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_narrow_wires(nodes, merge, wire):
    """Differences, error feedback, the second rounding by the node that adds: bit for bit ours.

    600 parameters are more than one block for each of several nodes.
    """
    run = both(nodes, "sgd", merge, 4, 2, size=600, wire=wire)
    training.assert_matches(*run)


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize(
    "phases",
    [
        dict(total=9),  # cycling from the first update to the last
        dict(total=9, warmup=9),
        dict(total=9, cooldown=9),
        dict(total=9, warmup=4, cooldown=5),
        dict(total=9, warmup=4, cooldown=4),  # one cycling update
        dict(total=9, warmup=3, cooldown=4),  # two: an exchange of age 1 at most
        dict(total=9, warmup=0, cooldown=2),
        dict(total=6, warmup=1, cooldown=1),  # and three updates past the end
    ],
    ids=str,
)
def test_phases_of_every_length(phases, merge):
    problem = reference.Quadratic(9, 3)
    ours, theirs = training.OPTIMIZERS["sgd"]
    trace = reference.daso(
        problem.x0,
        problem.gradient(),
        nodes=3,
        inner=ours,
        sync_every=3,
        delay=2,
        merge=merge,
        outer=training.OUTER[0],
        steps=9,
        **phases,
    )
    named = {"total": "total_steps", "warmup": "warmup_steps", "cooldown": "cooldown_steps"}
    settings = {named[name]: value for name, value in phases.items()}
    with jdaso.Session(engine="simulated", num_nodes=3) as session:
        tx = jdaso.daso(
            theirs(),
            phases=jdaso.Phases(**settings, sync_every=3, delay=2),
            session=session,
            merge=training.merge_of(merge),
        )
        params, momenta, _ = training.train(session, tx, problem)
    training.assert_matches(params, momenta, trace)


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("stop", range(1, 10))
def test_finalize_wherever_the_run_stops(stop, merge):
    """What is in flight is merged at its true age, then the exact mean; every node the same bits."""
    problem = reference.Quadratic(stop, 3)
    ours, theirs = training.OPTIMIZERS["sgd"]
    trace = reference.daso(
        problem.x0,
        problem.gradient(),
        nodes=3,
        inner=ours,
        total=100,
        warmup=1,
        sync_every=4,
        delay=3,
        merge=merge,
        outer=training.OUTER[0],
        steps=stop,
    )
    with jdaso.Session(engine="simulated", num_nodes=3) as session:
        tx = jdaso.daso(
            theirs(),
            phases=jdaso.Phases(100, 1, 0, 4, 3),
            session=session,
            merge=training.merge_of(merge),
        )
        _, _, (params, state) = training.train(session, tx, problem)
        finalize = jax.vmap(
            lambda p, s: jdaso.finalize(p, s, session), axis_name=session.node_axis
        )
        final = jax.vmap(lambda tree: jax.flatten_util.ravel_pytree(tree)[0])(
            jax.jit(finalize)(params, state)
        )
    np.testing.assert_array_equal(final, np.broadcast_to(final[:1], final.shape))
    np.testing.assert_allclose(final, trace.final, rtol=0, atol=reference.tolerance(trace))


@pytest.mark.parametrize("optimizer", training.OPTIMIZERS)
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_nodes_are_bitwise_equal_while_blocking(nodes, merge, optimizer):
    """All warm-up; from the third cool-down update on; and they differ in between."""
    params, momenta, _ = both(nodes, optimizer, merge, 4, 2)
    params = np.asarray(params)
    same = np.all(params == params[:, :1], axis=(1, 2))
    assert same[:WARMUP].all() and same[-COOLDOWN + 2 :].all()
    assert not same[WARMUP : -COOLDOWN - 1].any()
    for value in momenta.values():
        value = np.asarray(value)
        np.testing.assert_array_equal(value[:WARMUP], np.roll(value[:WARMUP], 1, axis=1))
        end = value[-COOLDOWN + 2 :]
        np.testing.assert_array_equal(end, np.roll(end, 1, axis=1))

