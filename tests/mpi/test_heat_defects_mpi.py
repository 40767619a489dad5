"""Defects of HeAT's DASO that only show between real nodes; see tests/unit/test_heat_defects.py."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
several = pytest.mark.skipif(SIZE == 1, reason="needs several nodes")
engines = pytest.mark.parametrize("engine", ["mpi4jax", "mpi4py"])


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
    """All of them, within seconds, naming the node: not one that raises and others that hang."""
    with jdaso.Session(engine=engine) as session:
        tx = jdaso.daso(optax.sgd(1.0), phases=jdaso.Phases(20, 1, 1, 3, 1), session=session)
        step, params = stepper(tx), {"w": jnp.zeros(3)}
        state = tx.init(params)
        begin, message = time.monotonic(), ""
        try:
            for n in range(8):
                value = bad if n == 2 and RANK == SIZE - 1 else 0.0
                params, state = step(params, state, {"w": jnp.full(3, value, jnp.float32)})
                jax.block_until_ready(params)
        except (jdaso.NodeError, jax.errors.JaxRuntimeError) as error:
            message = str(error)
        seconds = time.monotonic() - begin
    found = COMM.allgather(message)
    assert all("['w']" in text for text in found), found
    assert all(f"{SIZE - 1}" in text for text in found), found
    assert seconds < 60


@several
@engines
def test_defect_12_one_nodes_nan_is_skipped_by_every_node(engine):
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


@several
@engines
def test_defect_13_a_session_closes_over_what_is_in_flight(engine):
    """`break` and leave: nothing hangs, and the next session works."""
    with jdaso.Session(engine=engine) as session:
        tx = jdaso.daso(optax.sgd(1.0), phases=jdaso.Phases(50, 0, 0, 4, 3), session=session)
        step, params = stepper(tx), jnp.zeros(3)
        state = tx.init(params)
        for _ in range(2):
            params, state = step(params, state, jnp.ones(3))
        assert int(state.ticket) != 0
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
@engines
def test_defect_15_an_exchange_goes_on_while_the_node_does_something_else(engine):
    """Between start and wait the host sleeps; MPI alone would make no progress meanwhile.

    The first exchange opens connections and is not counted. What is left to wait for afterwards
    is a small part of the exchange (the thread that moves it needs no help).
    """
    size = 2**20
    with jdaso.Session(engine=engine) as session:
        tx = jdaso.daso(optax.sgd(1.0), phases=jdaso.Phases(50, 0, 0, 2, 1), session=session)
        step, params, gradient = stepper(tx), jnp.zeros(size), jnp.zeros(size)
        state = tx.init(params)
        waits = []
        for n in range(8):
            before = session.stats.lost_seconds
            params, state = step(params, state, gradient)
            jax.block_until_ready(params)
            waits.append(session.stats.lost_seconds - before)
            if n % 2 == 0:  # in flight
                time.sleep(0.5)
        taken = session.stats.exchange_seconds
    waited = COMM.allgather(min(waits[3::2]))
    assert max(waited) < 0.2, (waited, taken)


@several
@engines
def test_defect_16_narrow_wires_send_fewer_bytes(engine):
    """In the cycling phase: half for bfloat16, about a quarter for int8 (scales and headers)."""
    sent = {}
    for wire in ("float32", "bfloat16", "int8"):
        with jdaso.Session(engine=engine) as session:
            tx = jdaso.daso(
                optax.sgd(1.0), phases=jdaso.Phases(50, 0, 0, 2, 1), session=session, wire=wire
            )
            step, params = stepper(tx), jnp.zeros(2**16)
            state = tx.init(params)
            for _ in range(4):
                params, state = step(params, state, jnp.zeros(2**16))
            jax.block_until_ready(params)
            sent[wire] = session.stats.bytes_sent
    assert sent["bfloat16"] / sent["float32"] == pytest.approx(0.5, rel=0.01)
    assert sent["int8"] / sent["float32"] == pytest.approx(0.25 * (1 + 4 / 256), rel=0.01)


@several
@engines
def test_defect_17_a_loss_scale_skip_happens_on_all_nodes(engine):
    inner = optax.apply_if_finite(optax.sgd(0.5), max_consecutive_errors=5)
    with jdaso.Session(engine=engine) as session:
        tx = jdaso.synchronous(inner, session=session)
        step, params = stepper(tx), jnp.zeros(2)
        state = tx.init(params)
        for n in range(4):
            value = np.inf if n == 1 and RANK == 0 else 1.0
            params, state = step(params, state, jnp.full(2, value, jnp.float32))
        np.testing.assert_allclose(params, -1.5)
        assert int(state.inner.total_notfinite) == 1


@several
@engines
def test_defect_18_all_nodes_agree_on_the_delay(engine):
    """`delay="auto"`: one number for all, however different their clocks."""
    with jdaso.Session(engine=engine) as session:
        phases = jdaso.Phases(60, 2, 2, sync_every=5, delay="auto")
        tx = jdaso.daso(optax.sgd(1.0), phases=phases, session=session)
        step, params = stepper(tx), jnp.zeros(1000)
        state = tx.init(params)
        delays = []
        for _ in range(40):
            time.sleep(0.002 * (1 + RANK))
            params, state = step(params, state, jnp.zeros(1000))
            delays.append(int(state.phase.delay))
    everywhere = COMM.allgather(delays)
    assert all(other == delays for other in everywhere)
    assert delays[0] == 5 and 1 <= delays[-1] <= 5
