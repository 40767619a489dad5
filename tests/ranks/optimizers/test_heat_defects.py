"""Defects of HeAT's DASO that only show between real nodes.

The others are in tests/unit/optimizers/test_heat_defects.py.
"""

import re
import time
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI
from nights import at_night, rows

import jdaso

pytestmark = pytest.mark.two_nodes
COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
several = pytest.mark.skipif(SIZE == 1, reason="needs several nodes")
engines = pytest.mark.parametrize("engine", ["mpi4jax", "mpi4py"])
any_engine = pytest.mark.parametrize("engine", [at_night("mpi4jax"), "mpi4py"])


def stepper(tx):
    @jax.jit
    def step(params, state, gradient):
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return step


def test_defect_07_one_device_a_node():
    with jdaso.Session() as session:
        assert session.num_nodes == SIZE and session.node == RANK
        assert len(session.devices) >= 1 and session.mesh.size == len(session.devices)
        assert float(jdaso.mean(float(RANK), session)) == pytest.approx((SIZE - 1) / 2)


def test_defect_10_batch_statistics_are_averaged():
    with jdaso.Session() as session:
        stats = {"mean": jnp.full(3, RANK, jnp.float32), "count": jnp.int32(RANK)}
        averaged = jdaso.mean(stats, session)
        np.testing.assert_allclose(averaged["mean"], (SIZE - 1) / 2, rtol=1e-6)
        assert int(averaged["count"]) == RANK


@several
@engines
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_defect_12_one_nodes_nan_raises_on_every_node(engine, bad):
    """All nodes raise within seconds and name the node: none raises while others hang."""
    with jdaso.Session(engine=engine) as session:
        tx = jdaso.daso(optax.sgd(1.0), phases=jdaso.Phases(20, 1, 1, 3, 1), session=session)
        step, params = stepper(tx), {"w": jnp.zeros(3)}
        state = tx.init(params)
        begin, message = 0.0, ""
        try:
            for n in range(8):
                begin = time.monotonic() if n == 2 else begin  # compiled by now
                value = bad if n == 2 and RANK == SIZE - 1 else 0.0
                params, state = step(params, state, {"w": jnp.full(3, value, jnp.float32)})
                jax.block_until_ready(params)
        except (jdaso.NodeError, jax.errors.JaxRuntimeError, ValueError) as error:
            message = str(error)
        seconds = time.monotonic() - begin
    found = COMM.allgather(message)
    assert all(f"node {SIZE - 1}, leaf ['w']" in text for text in found), found
    assert seconds < 10


@several
@any_engine
def test_defect_12_one_nodes_nan_is_skipped_by_every_node(engine, caplog):
    with jdaso.Session(engine=engine) as session:
        tx = jdaso.daso(
            optax.sgd(1.0),
            phases=jdaso.Phases(20, 1, 1, 3, 1),
            session=session,
            on_nonfinite="skip",
        )
        step, params = stepper(tx), {"w": jnp.zeros(3)}
        state = tx.init(params)
        for n in range(10):
            value = np.nan if n == 2 and RANK == SIZE - 1 else 0.25
            params, state = step(params, state, {"w": jnp.full(3, value, jnp.float32)})
        finite = bool(np.isfinite(params["w"]).all())
        exchanges = int(state.phase.exchanges)
    assert COMM.allgather(finite) == [True] * (SIZE - 1) + [False]
    assert len(set(COMM.allgather(exchanges))) == 1
    skips = f"until these numbers are finite (1 so far): node {SIZE - 1}, leaf ['w']."
    assert caplog.text.count(skips) == 1 and "(2 so far)" in caplog.text


@several
@pytest.mark.parametrize(
    ("engine", "on_nonfinite", "steps"),
    rows(
        product(["mpi4jax", "mpi4py"], ["raise", "skip"], [15, 20]),
        day=[("mpi4jax", "raise", 20), ("mpi4py", "raise", 15), ("mpi4py", "skip", 20)],
    ),
)
def test_defect_12_one_node_turns_bad_after_its_last_snapshot(engine, on_nonfinite, steps):
    """Fails in the mean that ends cycling (update 15), or in `finalize` if the run stops before.

    The last snapshot is taken in update 12 and merged in 13.
    """
    begin, message, final = 0.0, "", np.zeros(2)
    try:
        with jdaso.Session(engine=engine) as session:
            tx = jdaso.daso(
                optax.sgd(1.0),
                phases=jdaso.Phases(20, 2, 4, 5, 1),
                session=session,
                merge="corrected",
                on_nonfinite=on_nonfinite,
            )
            step, params = stepper(tx), {"w": jnp.zeros(2)}
            state = tx.init(params)
            for n in range(steps):
                begin = time.monotonic() if n == 14 else begin  # compiled by now
                gradient = np.full(2, RANK + 1 if n == 14 else 0, np.float32)
                if n == 14 and RANK == SIZE - 1:
                    gradient[0] = np.nan
                params, state = step(params, state, {"w": gradient})
                jax.block_until_ready(params)
            final = jdaso.finalize(params, state, session)["w"]
    except (jdaso.NodeError, jax.errors.JaxRuntimeError, ValueError) as error:
        message = str(error)
    seconds = time.monotonic() - begin
    found = COMM.allgather(message)
    if on_nonfinite == "raise":
        where = rf"step 15\] .*not finite .*: node {SIZE - 1}, leaf .*\['w'\]"
        assert all(re.search(where, text) for text in found), found
        assert seconds < 10
    else:
        assert not any(found), found
        mean_of_the_others = -sum(range(1, SIZE)) / (SIZE - 1)
        np.testing.assert_allclose(final, mean_of_the_others, rtol=1e-6)


@several
@any_engine
@pytest.mark.parametrize("finalized", [True, False])
def test_defect_13_a_session_closes_over_what_is_in_flight(engine, finalized, caplog):
    """A `break` completes the exchange on every node, and logs that nobody merges it."""
    with jdaso.Session(engine=engine) as session:
        phases = jdaso.Phases(50, 0, 0, 4, 3)
        tx = jdaso.daso(optax.sgd(1.0), phases=phases, session=session, merge="corrected")
        step, params = stepper(tx), jnp.zeros(3)
        state = tx.init(params)
        for _ in range(2):
            params, state = step(params, state, jnp.full(3, RANK, jnp.float32))
        assert bool(state.ticket.any())
        if finalized:
            params = jdaso.finalize(params, state, session)
            np.testing.assert_allclose(params, -(SIZE - 1), rtol=1e-6)
    assert session.stats.exchanges == 1, "counted when it is completed"
    assert ("was completed but never merged" in caplog.text) == (not finalized)
    with jdaso.Session(engine=engine) as session:
        assert float(jdaso.mean(1.0, session)) == 1.0


@several
def test_defect_13_unequal_numbers_of_steps_are_an_error_on_every_node():
    with jdaso.Session() as session:
        # Warm-up 0 and the first exchange far away: the nodes do not meet before `finalize`.
        tx = jdaso.daso(optax.sgd(1.0), phases=jdaso.Phases(50, 0, 0, 20, 19), session=session)
        step, params = stepper(tx), jnp.zeros(3)
        state = tx.init(params)
        for _ in range(3 + (RANK == 0)):
            params, state = step(params, state, jnp.ones(3))
        with pytest.raises(jdaso.NodeError, match=r"\[node \d+ of \d+.*step"):
            jdaso.finalize(params, state, session)


@several
@any_engine
def test_defect_15_an_exchange_goes_on_while_the_node_does_something_else(engine):
    """Nothing calls MPI while the host sleeps, and MPI by itself makes no progress.

    The wait that is left afterwards is a tiny share of the time that the same numbers take while
    blocking. The first exchange of a kind opens connections and is not counted. A busy core makes
    some starts long, for which the test makes more of them; means are ten for the same reason.
    """
    size, warmup, repeats, most = 2**23, 10, 6, 20
    with jdaso.Session(engine=engine) as session:
        phases = jdaso.Phases(50, warmup, 0, 2, 1, fragments=1)  # a start only before a sleep
        tx = jdaso.daso(optax.sgd(1.0), phases=phases, session=session)
        step, params, gradient = stepper(tx), jnp.zeros(size), jnp.zeros(size)
        state = tx.init(params)

        def seconds(kind):
            """One update, and the seconds of this kind that it took on the slowest node."""
            nonlocal params, state
            before = getattr(session.stats, kind)
            params, state = step(params, state, gradient)
            jax.block_until_ready(params)
            return COMM.allreduce(getattr(session.stats, kind) - before, op=MPI.MAX)

        means = [seconds("blocking_seconds") for _ in range(warmup)][1:]
        starts, waits = [], []
        while len(starts) < repeats or (
            len(starts) < most and min(starts[1:]) >= 0.5 * min(means)  # the same on all nodes
        ):
            starts.append(seconds("lost_seconds"))
            time.sleep(0.1 + 3 * max(means))
            waits.append(seconds("lost_seconds"))
    told = f"starts {starts}, waits {waits}, while blocking {means}"
    assert min(waits[1:]) < 0.1 * min(means), told
    assert min(starts[1:]) < 0.5 * min(means), told  # the copy of what is sent


@several
@any_engine
def test_defect_16_narrow_wires_send_fewer_bytes(engine):
    """Cycling sends 1/2 of the bytes with bfloat16, 1/4 with int8, 1/8 with int4; and scales."""
    sent = {}
    for wire in ("float32", "bfloat16", "int8", "int4"):
        with jdaso.Session(engine=engine) as session:
            tx = jdaso.daso(
                optax.sgd(1.0), phases=jdaso.Phases(50, 0, 0, 2, 1), session=session, wire=wire
            )
            step, params = stepper(tx), jnp.zeros(2**16)
            state = tx.init(params)
            for _ in range(4):
                params, state = step(params, state, jnp.zeros(2**16))
            jax.block_until_ready(params)
        sent[wire] = session.stats.bytes_sent  # closed: the last exchange has ended
    assert sent["bfloat16"] / sent["float32"] == pytest.approx(0.5, rel=0.01)
    assert sent["int8"] / sent["float32"] == pytest.approx(0.25 * (1 + 4 / 256), rel=0.01)
    assert sent["int4"] / sent["float32"] == pytest.approx(0.125 * (1 + 4 / 64), rel=0.01)


@several
@any_engine
@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_defect_17_a_loss_scale_skip_happens_on_all_nodes(engine, wire):
    inner = optax.apply_if_finite(optax.sgd(0.5), max_consecutive_errors=5)
    with jdaso.Session(engine=engine) as session:
        tx = jdaso.synchronous(inner, session=session, wire=wire)
        step, params = stepper(tx), jnp.zeros(2)
        state = tx.init(params)
        for n in range(4):
            value = np.inf if n == 1 and RANK == 0 else 1.0
            params, state = step(params, state, jnp.full(2, value, jnp.float32))
        np.testing.assert_allclose(params, -1.5)
        assert int(state.inner.total_notfinite) == 1


@several
@any_engine
def test_defect_18_all_nodes_agree_on_the_delay(engine):
    """`delay="auto"`: one number for all, however different their clocks."""
    with jdaso.Session(engine=engine) as session:
        phases = jdaso.Phases(60, 2, 2, sync_every=5, delay="auto")
        tx = jdaso.daso(optax.sgd(1.0), phases=phases, session=session)
        step, params = stepper(tx), jnp.zeros(1000)
        state = tx.init(params)
        delays = []
        for _ in range(20):
            time.sleep(0.12)
            params, state = step(params, state, jnp.zeros(1000))
            delays.append(int(state.phase.delay))
    everywhere = COMM.allgather(delays)
    assert all(other == delays for other in everywhere)
    # A few kB take milliseconds where a step takes 120.
    assert delays[0] == 1 and min(delays[-5:]) <= 2
