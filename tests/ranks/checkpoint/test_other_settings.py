"""A run that goes on with other nodes and other settings, and saves that fail while it trains."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso
from jdaso.checkpoint import CheckpointError, Checkpoints
from jdaso.checkpoint._flights import keep_flights, release
from jdaso.checkpoint._folder import Folder

pytestmark = [pytest.mark.two_nodes, pytest.mark.several]
COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()


def a_run(tx, session):
    """A state as before the first update, and the update."""
    params = {"w": jnp.zeros((40, 5))}

    @jax.jit
    def step(params, opt_state):
        grads = jax.tree.map(lambda x: x - 1.3 - session.node, params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return (params, tx.init(params)), lambda state: step(*state)


def run(comm, folder, make, steps):
    """Goes on from the newest checkpoint for so many steps, and saves; returns both states."""
    with jdaso.Session(comm, timeout_seconds=120) as session:
        checkpoints = Checkpoints(folder, session, stop_signals=())
        state, step = a_run(make(session), session)
        begun, begin = checkpoints.restore(state)
        state = begun
        for _ in range(steps):
            state = step(state)
        checkpoints.save(begin + steps, state)
        checkpoints.wait()
        return jax.device_get((begun, state))


def on_one(folder, make, steps):
    """`run` on node 0 alone, while the others wait."""
    COMM.Barrier()
    found = run(MPI.COMM_SELF, folder, make, steps) if RANK == 0 else None
    COMM.Barrier()
    return found


@pytest.mark.parametrize("changed", [True, False])
def test_several_nodes_go_on_from_one_with_the_phases_of_the_program(changed, folder):
    def make(sync_every, delay):
        phases = jdaso.Phases(40, 4, 4, sync_every=sync_every, delay=delay, fragments=1)
        return lambda session: jdaso.daso(optax.adam(0.1), phases=phases, session=session)

    on_one(folder, make(4, 1), steps=6)
    begun, _ = run(COMM, folder, make(8, 3) if changed else make(4, 1), steps=3)
    phase = begun[1].phase
    assert (phase.sync_every, phase.delay) == ((8, 3) if changed else (4, 1))
    assert begun[1].step == 6


def test_phases_that_have_not_changed_go_on_where_they_were(folder):
    """A plateau has set B; the nodes go on with it, though one of them was alone meanwhile."""
    phases = jdaso.Phases.plateau(40, 2, 4, 4, patience=1)

    def make(session):
        return jdaso.daso(optax.sgd(0.0), phases=phases, session=session)

    def step_with_loss(session, state, steps):
        tx = make(session)
        step = jax.jit(lambda p, s: tx.update(p, s, p, value=1.0))
        for _ in range(steps):
            _, opt_state = step(*state)
            state = state[0], opt_state
        return state

    for comm in (COMM, MPI.COMM_SELF, COMM):
        COMM.Barrier()
        if comm is MPI.COMM_SELF and RANK > 0:
            continue
        with jdaso.Session(comm, timeout_seconds=120) as session:
            checkpoints = Checkpoints(folder, session, stop_signals=())
            state, _ = a_run(make(session), session)
            state, begin = checkpoints.restore(state)
            if begin == 0:
                state = step_with_loss(session, state, 30)
                lowered = int(state[1].phase.sync_every)
                assert lowered < 8
                checkpoints.save(30, state)
            elif comm is MPI.COMM_SELF:
                checkpoints.save(31, step_with_loss(session, state, 1))
            else:
                assert int(state[1].phase.sync_every) == lowered


@pytest.mark.parametrize("fewer", [True, False])
def test_error_feedback_begins_anew_on_one_node_and_on_several(fewer, folder):
    def make(session):
        return jdaso.synchronous(optax.sgd(0.1), session=session, wire="int8")

    def several(folder, make, steps):
        return run(COMM, folder, make, steps)

    first, second = (several, on_one) if fewer else (on_one, several)
    before, after = first(folder, make, 3), second(folder, make, 2)
    if before is not None and after is not None:
        (params, before), (begun, after) = before[1], (after[0], after[1][1])
        np.testing.assert_array_equal(begun[0]["w"], params["w"])
        assert (before.step, begun[1].step, after.step) == (3, 3, 5)
        assert not any(x.any() for x in jax.tree.leaves(begun[1].error))


def test_saves_that_fail_hold_no_numbers(folder, monkeypatch):
    """Otherwise each failed save would leave a copy of the parameters on the host."""
    phases = jdaso.Phases(40, 2, 2, sync_every=4, delay=3, fragments=2)

    def refuse(self):
        raise OSError("not mounted")

    with jdaso.Session(timeout_seconds=120) as session:
        checkpoints = Checkpoints(folder, session, stop_signals=())
        state, step = a_run(jdaso.daso(optax.sgd(0.1), phases=phases, session=session), session)
        for _ in range(6):
            state = step(state)
        kept = keep_flights(state, session)
        assert kept
        readers = [x.version.numbers.readers for x in kept]
        release(kept)
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "make_again", refuse)
            for number in range(3):
                checkpoints.save(6 + number, state)
                with pytest.raises(CheckpointError, match="not mounted"):
                    checkpoints.wait()
        kept = keep_flights(state, session)
        assert [x.version.numbers.readers for x in kept] == readers
        release(kept)
        checkpoints.save(9, state)
        checkpoints.wait()
        jdaso.finalize(*state, session)
