"""A pipeline that goes on from a checkpoint: the newest that all partitions have, whole."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from mpi4py import MPI

import jdaso
from jdaso import pipeline
from jdaso.checkpoint import CheckpointError, Checkpoints, Reader, _arrays

COMM = MPI.COMM_WORLD
partitions = pytest.mark.skipif(COMM.size not in (2, 3), reason="2 or 3 partitions")
pytestmark = pytest.mark.two_nodes
PARAMS = {"w": [np.eye(4, dtype=np.float32)] * 4}
BATCH = np.ones((4, 4), np.float32)


def loss_fn(params, batch):
    for w in params["w"]:
        batch = jnp.tanh(batch @ w)
    return jnp.mean(batch**2)


def steps_of_waits(folder, steps):
    """The steps to which waits for other partitions belong, as errors name them."""
    with jdaso.Session(timeout_seconds=60) as session:
        plan = pipeline.partition(loss_fn, PARAMS, BATCH, num_partitions=COMM.size)
        pipe = pipeline.Pipeline(plan, optax.sgd(0.1), session=session)
        checkpoints = Checkpoints(folder, pipe, every_steps=1)
        state, begin = checkpoints.restore(pipe.init(PARAMS))
        for step in range(begin, begin + steps):
            state, _ = pipe.step(state, BATCH)
            checkpoints.after(step + 1, state)
        events = session.timeline.events
        return {event.step for event in events if event.lane == "messages"}


@partitions
def test_steps_count_from_the_start_of_the_run(folder):
    assert steps_of_waits(folder, 2) == {0, 1}
    assert steps_of_waits(folder, 3) == {2, 3, 4}


@pytest.fixture
def pipe():
    with jdaso.Session(timeout_seconds=60) as session:
        plan = pipeline.partition(loss_fn, PARAMS, BATCH, num_partitions=COMM.size)
        yield pipeline.Pipeline(plan, optax.sgd(0.1), session=session)


def filled(state, number):
    """A state whose parameters are all one number."""
    return state._replace(params=jax.tree.map(lambda x: x * 0 + number, state.params))


def number_in(state):
    """The number; the same in all of a rank's parameters."""
    (found,) = {float(x) for leaf in jax.tree.leaves(state.params) for x in np.unique(leaf)} or {0}
    return found


@partitions
def test_the_newest_is_the_last_that_was_saved(pipe, folder):
    """After a return to an earlier step, a save of a lower step is newer than those before."""
    checkpoints = Checkpoints(folder, pipe, keep_last=4, stop_signals=())
    for step in (2, 4, 6):
        checkpoints.save(step, filled(pipe.init(PARAMS), step))
    state, _ = checkpoints.restore(pipe.init(PARAMS), 2)
    checkpoints.save(3, filled(state, 30))
    checkpoints.wait()
    found, step = checkpoints.restore(pipe.init(PARAMS))
    assert (number_in(found), step) == (30, 3)
    assert Reader(folder, pipe).restore(pipe.init(PARAMS))[1] == 3
    assert checkpoints.steps() == [2, 3, 4, 6]


@partitions
def test_parts_of_two_saves_of_one_step_are_never_joined(pipe, folder):
    checkpoints = Checkpoints(folder, pipe, keep_last=4, stop_signals=())
    for step, number in ((2, 2), (4, 4), (4, 40)):
        checkpoints.save(step, filled(pipe.init(PARAMS), number))
    checkpoints.wait()
    if COMM.rank == 0:  # one partition lost its second save of step 4
        *_, last = sorted(folder.glob("partitions-*/1/step_00000004-*"))
        (last / "node_0.json").unlink()
    COMM.Barrier()
    found, step = checkpoints.restore(pipe.init(PARAMS))
    assert (number_in(found), step) == (4, 4)


@partitions
def test_saves_that_one_partition_cannot_write_cost_no_earlier_one(pipe, folder, monkeypatch):
    """Its quota is full. The others write theirs, training goes on, and the run restores."""
    checkpoints = Checkpoints(folder, pipe, keep_last=1, keep_best=1, stop_signals=())
    notes, points = [], []
    pipe.session.hooks.on_note(lambda kind, step, text: notes.append((kind, step)))
    pipe.session.hooks.on_point(points.append)
    for step, score in ((1, 9.0), (2, 1.0)):
        checkpoints.save(step, filled(pipe.init(PARAMS), step), score)
    checkpoints.wait()

    def full(*_):
        raise OSError(28, "No space left on device")

    if COMM.rank == 1:
        monkeypatch.setattr(_arrays, "write_arrays", full)
    for step in (3, 4, 5, 6):
        checkpoints.save(step, filled(pipe.init(PARAMS), step), 10.0 + step)
    with pytest.raises(CheckpointError, match="No space left"):
        checkpoints.wait()
    monkeypatch.undo()
    assert checkpoints.steps() == [1, 2]
    assert len([*folder.glob(f"partitions-*/{COMM.rank}/step_*")]) <= 3
    for step, given in ((2, None), (1, 1)):
        found, begin = checkpoints.restore(pipe.init(PARAMS), given)
        assert (number_in(found), begin) == (step, step)
    checkpoints.save(7, filled(pipe.init(PARAMS), 7), 2.0)
    checkpoints.wait()
    COMM.Barrier()
    assert checkpoints.steps() == [1, 7] and checkpoints.restore(pipe.init(PARAMS))[1] == 7
    failed = range(3, 7) if COMM.rank == 1 else ()
    kinds = ["fault" if step in failed else "checkpoint" for step in range(1, 8)]
    assert notes == list(zip(kinds, range(1, 8), strict=True))
    assert points.count("save") >= 3 and points.count("restore") == 3


def cycled(session, folder, num_partitions, steps, **settings):
    """Trains to a step of the cycling phase; returns the parameters."""
    batches = [np.random.default_rng(n).standard_normal((4, 4)) for n in range(steps)]
    result = jdaso.fit(
        loss_fn,
        PARAMS,
        optax.sgd(0.1, momentum=0.5),
        [batch.astype(np.float32) for batch in batches],
        session=session,
        strategy="hybrid",
        num_partitions=num_partitions,
        num_microbatches=2,
        phases=jdaso.Phases(60, 2, 4, sync_every=4, delay=2),
        settings=settings,
        folder=folder,
        every_steps=steps,
    )
    return np.stack(jax.tree.leaves(result.params))


def alone(steps):
    """One process; all replicas above have its batches."""
    tx, params = optax.sgd(0.1, momentum=0.5), jax.tree.map(jnp.asarray, PARAMS)
    state, grad = tx.init(params), jax.jit(jax.grad(loss_fn))
    for n in range(steps):
        batch = np.random.default_rng(n).standard_normal((4, 4)).astype(np.float32)
        updates, state = tx.update(grad(params, batch), state)
        params = optax.apply_updates(params, updates)
    return np.stack(jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("settings", "off"),
    [
        ({"wire": "float32"}, 1e-4),
        ({"wire": "int8"}, 0.02),
        ({"wire": "bfloat16", "merge": jdaso.outer(optax.sgd(1.0))}, 0.02),
    ],
    ids=["float32", "int8", "outer"],
)
@pytest.mark.skipif(COMM.size not in (2, 4), reason="2 or 4 nodes")
def test_a_run_that_is_cycling_goes_on_in_other_partitions(folder, settings, off):
    steps = 7
    for num_partitions in {2: (2, 1, 2), 4: (2, 1, 4, 2)}[COMM.size]:
        with jdaso.Session(timeout_seconds=60) as session:
            found = cycled(session, folder, num_partitions, steps, **settings)
        expected = alone(steps)
        moved = np.abs(expected - np.stack(PARAMS["w"])).max()
        assert np.abs(found - expected).max() < off * moved
        assert len({x.tobytes() for x in COMM.allgather(found)}) == 1
        steps += 6


@pytest.mark.skipif(COMM.size != 4, reason="4 nodes")
def test_other_partitions_need_the_settings_that_were_saved(folder):
    with jdaso.Session(timeout_seconds=60) as session:
        cycled(session, folder, 2, 7, wire="int8")
    other = pytest.raises(CheckpointError, match="another value of the setting wire")
    with jdaso.Session(timeout_seconds=60) as session, other:
        cycled(session, folder, 1, 13, wire="bfloat16")
