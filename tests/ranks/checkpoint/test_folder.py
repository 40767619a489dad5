"""All ranks agree on a folder: failed saves of one, a reader, invalid names."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import jdaso
from jdaso.checkpoint import CheckpointError, Checkpoints, Reader
from jdaso.checkpoint import _arrays as arrays

pytestmark = pytest.mark.two_nodes
COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()


def a_state(rank=RANK, step=0):
    return {"w": jnp.full((300, 300), float(rank + step)), "n": jnp.int32(rank), "m": jnp.zeros(3)}


@pytest.mark.parametrize("waits", [True, False])
def test_a_save_that_fails_on_one_node_leaves_nothing(waits, folder, monkeypatch):
    """A failed save leaves no part of the other nodes either, which are written by then.

    Without a wait each removes its own part before it writes the next one.
    """
    seen = []

    def full(folder, name, arrays):
        (folder / f"{name}.orbax-checkpoint-tmp").mkdir()
        COMM.Barrier()
        raise OSError(28, "No space left on device")

    def left():
        COMM.Barrier()
        found = [path for path in folder.glob("step_00000002-*/*") if path.name != "failed"]
        COMM.Barrier()
        return found

    with jdaso.Session() as session:
        checkpoints = Checkpoints(folder, session, keep_last=1, stop_signals=())
        checkpoints.save(1, a_state())
        checkpoints.wait()
        with monkeypatch.context() as patch:
            if RANK == SIZE - 1:
                patch.setattr(arrays, "write_arrays", full)
            checkpoints.save(2, a_state())
            if RANK < SIZE - 1:
                checkpoints._saver.join()
                COMM.Barrier()
            checkpoints._saver.join()
        assert len(left()) >= SIZE - 1
        if waits:
            with pytest.raises(CheckpointError, match=f"node {SIZE - 1} of .*No space left"):
                checkpoints.wait()
            assert left() == []
        else:
            session.hooks.on_point(lambda point: seen.append(left()))
            checkpoints.save(3, a_state())
            checkpoints._saver.join()
            COMM.Barrier()
            assert seen == [[]]
        assert checkpoints.steps()[-1] == (1 if waits else 3)


def test_a_reader_gives_all_the_mean_while_the_run_holds_the_folder(folder):
    with jdaso.Session() as session:
        checkpoints = Checkpoints(folder, session, stop_signals=())
        checkpoints.save(5, a_state(step=5))
        checkpoints.wait()
        reader = Reader(folder, session)
        state, step = reader.restore({"w": a_state()["w"], "n": a_state()["n"]})
        assert step == 5 and int(state["n"]) == 0
        np.testing.assert_array_equal(state["w"], np.full((300, 300), 5 + (SIZE - 1) / 2))
        steps = [step for _, step in reader.follow({"n": a_state()["n"]}, limit_seconds=0)]
        assert steps == [5]


@pytest.mark.several
def test_readers_of_a_run_with_other_keys_on_each_node_get_the_same_key(folder):
    with jdaso.Session() as session:
        checkpoints = Checkpoints(folder, session, stop_signals=())
        checkpoints.save(5, {"key": jax.random.key(session.node)})
        checkpoints.wait()
        state, _ = Reader(folder, session).restore({"key": jax.random.key(0)})
        found = jax.random.key_data(state["key"])
        np.testing.assert_array_equal(found, jax.random.key_data(jax.random.key(0)))


@pytest.mark.several
def test_a_node_that_leaves_early_waits_for_no_save(folder):
    """All saves are written: node 1 closes its session, and the others get the news at once."""
    with pytest.raises(jdaso.NodeError, match=r"node 1 .*ended the session"):
        with jdaso.Session(timeout_seconds=50) as session:
            checkpoints = Checkpoints(folder, session, stop_signals=())
            checkpoints.save(5, a_state())
            checkpoints.wait()
            begin = time.monotonic()
            if RANK == 1:
                session.close()
                raise jdaso.NodeError("node 1 has ended the session")
            session.agree("go on", [])
    assert time.monotonic() - begin < 25


@pytest.mark.several
def test_a_reader_of_another_tree_is_refused(folder):
    with jdaso.Session() as session:
        checkpoints = Checkpoints(folder, session, stop_signals=())
        checkpoints.save(5, a_state())
        checkpoints.wait()
        like = {"w": a_state()["w"]} if RANK == 0 else {"n": a_state()["n"]}
        with pytest.raises(jdaso.NodeError, match="leaf"):
            Reader(folder, session).restore(like)


@pytest.mark.several
def test_a_name_that_is_none_on_one_node_is_refused_on_all(monkeypatch, folder):
    monkeypatch.setenv("SCRATCH", str(folder))
    if RANK == 1:
        monkeypatch.delenv("SCRATCH")
    with jdaso.Session() as session:
        with pytest.raises(CheckpointError, match=r"node 1 of .*names \$SCRATCH, which is not set"):
            Checkpoints("$SCRATCH/run", session, stop_signals=())
        said = os.fsdecode(b"caf\xe9")
        assert session.control.everyone("test", said) == ["caf\\udce9"] * SIZE
