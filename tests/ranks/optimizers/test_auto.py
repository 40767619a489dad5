"""B, S and wire from what the nodes measure: one choice for all, however different they are."""

import logging
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso
from jdaso._payload.wire import WIRES
from jdaso._session import channels

pytestmark = pytest.mark.two_nodes
COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
several = pytest.mark.skipif(SIZE == 1, reason="needs several nodes")


class SlowOnOneNode:
    """A reducer that the last node enters later."""

    seconds = 0.0

    def __init__(self, reducer):
        self.reducer, self.close = reducer, reducer.close

    def __call__(self, work):
        if RANK == SIZE - 1:
            time.sleep(self.seconds)
        self.reducer(work)


@pytest.fixture
def slow(monkeypatch):
    make = channels.make_reducer
    monkeypatch.setattr(
        channels, "make_reducer", lambda *args, **by: SlowOnOneNode(make(*args, **by))
    )
    yield SlowOnOneNode
    SlowOnOneNode.seconds = 0.0


@several
def test_the_interval_follows_the_link_on_all_nodes(slow):
    """Exchanges take half a second, 20 steps, and then some ms: B grows, and is 1 again."""
    phases = jdaso.Phases(2000, 2, 2, sync_every="auto", delay="auto")
    with jdaso.Session(engine="mpi4py") as session:
        tx = jdaso.daso(optax.sgd(1.0), phases=phases, session=session)

        @jax.jit
        def step(params, state):
            updates, state = tx.update(jnp.zeros(1000), state, params)
            return optax.apply_updates(params, updates), state

        params, found = jnp.zeros(1000), []
        state = tx.init(params)

        def follow(until, steps=400):
            for _ in range(steps):
                time.sleep(0.025)
                nonlocal params, state
                params, state = step(params, state)
                found.append((int(state.phase.sync_every), int(state.phase.delay)))
                if until(found[-1][0]):
                    return True
            return False

        slow.seconds = 1.0
        assert follow(lambda every: every > 8)
        slow.seconds = 0.0
        assert follow(lambda every: every == 1)
    assert found[0] == (1, 1), "before anything is measured"
    assert all(1 <= delay <= every for every, delay in found)
    assert all(other == found for other in COMM.allgather(found))


@several
def test_a_run_with_auto_settings_ends_equal_on_all_nodes(slow):
    """B changes on the way, and B and S by clocks; the weights are equal at the end."""
    slow.seconds = 0.1
    with jdaso.Session(engine="mpi4py") as session:
        phases = jdaso.Phases(60, 2, 5, sync_every="auto", delay="auto", fragments=2)
        tx = jdaso.daso(optax.adam(0.1), phases=phases, session=session, wire="auto")

        @jax.jit
        def step(params, state, target):
            gradients = jax.grad(lambda p: sum(jnp.sum((x - target) ** 2) for x in p))(params)
            updates, state = tx.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        params = [jnp.zeros(300), jnp.zeros((20, 15))]
        state, every = tx.init(params), set()
        for _ in range(60):
            params, state = step(params, state, jnp.float32(RANK))
            every.add(int(state.phase.sync_every))
        params = jdaso.finalize(params, state, session)
    assert len(every) > 1
    bits = [np.asarray(x).tobytes() for x in params]
    assert all(other == bits for other in COMM.allgather(bits))
    np.testing.assert_allclose(params[0], (SIZE - 1) / 2, atol=0.25)


@several
def test_a_discarded_step_starts_nothing_new(slow):
    """`optax.MultiSteps` repeats the exchange in each step; B and its times count updates."""
    slow.seconds, seconds = 0.06, 0.025
    with jdaso.Session(engine="mpi4py") as session:
        phases = jdaso.Phases(200, 2, 2, sync_every="auto", delay="auto")
        tx = jdaso.daso(optax.sgd(1.0), phases=phases, session=session)
        tx = optax.MultiSteps(tx, 4)
        params = jnp.zeros(1000)
        state, found = tx.init(params), []
        step = jax.jit(lambda params, state: tx.update(jnp.zeros(1000), state, params)[1])
        for _ in range(4 * 30):
            time.sleep(seconds)
            state = step(params, state)
            found.append(int(state.inner_opt_state.phase.sync_every))
    assert 1 <= found[-1] <= 8, "four steps of 25 ms are an update"
    assert all(other == found for other in COMM.allgather(found))


@several
def test_a_wire_that_only_some_nodes_measure_is_an_error():
    """The error comes at once on all nodes, and not after the longest wait."""
    with pytest.raises(jdaso.NodeError, match="measure the wires|initialise") as caught:
        with jdaso.Session(engine="mpi4py", timeout_seconds=60) as session:
            wire = "auto" if RANK == 0 else "float32"
            tx = jdaso.daso(optax.sgd(1.0), phases=jdaso.Phases(9), session=session, wire=wire)
            begin = time.monotonic()
            tx.init(jnp.zeros(3))
    assert time.monotonic() - begin < 30 if RANK else caught


@several
def test_a_session_that_may_shrink_refuses_to_measure(monkeypatch):
    with jdaso.Session(engine="mpi4py") as session:
        monkeypatch.setattr(session.control, "survives", True)
        with pytest.raises(ValueError, match="on_death=.*Name the wire"):
            session.fastest_wire()
        monkeypatch.undo()


@several
def test_all_nodes_take_one_wire(caplog):
    with caplog.at_level(logging.INFO, "jdaso"), jdaso.Session(engine="mpi4py") as session:
        name = session.fastest_wire().name
        assert session.fastest_wire().name == name, "measured once"
    assert COMM.allgather(name) == [name] * SIZE
    told = [r.message for r in caplog.records if 'wire="auto" is' in r.message]
    assert len(told) == 1 and f'"{name}"' in told[0] and "MB/s" in told[0]


@several
def test_the_slowest_host_decides_on_the_wire(monkeypatch):
    """One host encodes extremely slowly, so all take float32."""
    slow = {name: 0.0 if name == "float32" else 1.0 for name in WIRES}
    free = dict.fromkeys(WIRES, 0.0)
    own = slow if RANK == SIZE - 1 else free
    monkeypatch.setattr(channels, "host_seconds_of", lambda wire, nodes: own[wire.name])
    with jdaso.Session(engine="mpi4py") as session:
        assert session.fastest_wire().name == "float32"
    monkeypatch.setattr(channels, "host_seconds_of", lambda wire, nodes: 0.0)
    with jdaso.Session(engine="mpi4py") as session:
        assert session.fastest_wire().name == "int4"


def test_a_single_node_has_no_link():
    with jdaso.Session(engine=jdaso.Simulated(2)) as session:
        assert session.fastest_wire().name == "float32"
