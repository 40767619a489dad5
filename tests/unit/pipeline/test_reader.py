"""A pipeline's checkpoints are read while a run holds the folder."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso
from jdaso import pipeline
from jdaso.checkpoint import CheckpointError, Checkpoints, Reader


def loss_fn(params, batch):
    for w in params["w"]:
        batch = jnp.tanh(batch @ w)
    return jnp.mean(batch**2)


PARAMS = {"w": [np.full((3, 3), 0.1 * k, np.float32) for k in range(1, 3)]}
BATCH = np.ones((4, 3), np.float32)


@pytest.fixture
def pipe():
    with jdaso.Session() as session:
        plan = pipeline.partition(loss_fn, PARAMS, BATCH, num_partitions=1)
        yield pipeline.Pipeline(plan, optax.adam(1e-2), session=session)


def same(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(x, y), a, b))


def test_it_reads_beside_the_run(pipe, tmp_path):
    reader = Reader(tmp_path / "run", pipe)
    start, state = pipe.init(PARAMS), pipe.init(PARAMS)
    with pytest.raises(CheckpointError, match=r"can be read\. There is no complete one yet\."):
        reader.restore(start)
    checkpoints = Checkpoints(tmp_path / "run", pipe, stop_signals=())
    params = {}
    for step in (1, 2):
        state, _ = pipe.step(state, BATCH)  # the one before is given away
        checkpoints.save(step, state)
        params[step] = jax.tree.map(np.array, state.params)
    checkpoints.wait()
    (tmp_path / "run" / "partitions-old" / "0").mkdir(parents=True)  # the user's own
    assert reader.steps() == [1, 2]
    for step, given in ((2, None), (1, 1)):
        state, found = reader.restore(pipe.init(PARAMS), given)
        assert found == step
        assert same(state.params, params[step])
        assert not same(state.params, start.params)
    with pytest.raises(CheckpointError, match="no complete one of step 7"):
        reader.restore(start, 7)
    (path,) = tmp_path.glob("run/partitions-1/0/step_00000002-*/node_0/jdaso.small/0")
    path.write_bytes(bytes(path.stat().st_size))
    assert reader.restore(start)[1] == 1


def saved(pipe, folder, *steps):
    """Checkpoints of a pipeline's steps, and the states."""
    checkpoints = Checkpoints(folder, pipe, stop_signals=())
    state, states = pipe.init(PARAMS), {}
    for step in steps:
        state, _ = pipe.step(state, BATCH)
        checkpoints.save(step, state)
        states[step] = jax.tree.map(np.array, state)
    checkpoints.wait()
    return checkpoints, states


def damage(folder, step):
    (path,) = folder.glob(f"partitions-1/0/step_{step:08}-*/node_0/jdaso.small/0")
    path.write_bytes(bytes(path.stat().st_size))


def test_a_step_is_asked_for_and_a_damaged_one_left_out(pipe, tmp_path, caplog):
    checkpoints, states = saved(pipe, tmp_path, 1, 2)
    state, step = checkpoints.restore(pipe.init(PARAMS), 1)
    assert step == 1 and same(state, states[1])
    damage(tmp_path, 2)
    state, step = checkpoints.restore(pipe.init(PARAMS))
    assert step == 1 and same(state, states[1])
    assert "Skips a checkpoint" in caplog.text
    with pytest.raises(CheckpointError, match="of step 2 in .* can be restored"):
        checkpoints.restore(pipe.init(PARAMS), 2)


def test_the_best_is_kept(pipe, tmp_path):
    checkpoints = Checkpoints(tmp_path, pipe, keep_last=1, keep_best=1, stop_signals=())
    for step, score in ((1, 0.3), (2, 0.9), (3, 0.5), (4, 0.4)):
        checkpoints.save(step, pipe.init(PARAMS), score)
        checkpoints.wait()
    assert checkpoints.steps() == [2, 4]


def test_it_follows_a_run(pipe, tmp_path):
    reader, found = Reader(tmp_path, pipe), []
    checkpoints, states = saved(pipe, tmp_path, 1)
    for state, step in reader.follow(pipe.init(PARAMS), poll_seconds=0.01, limit_seconds=0.1):
        found.append(step)
        assert same(state.params, states[1].params)
        if step == 1:
            checkpoints.save(2, state)
            checkpoints.wait()
    assert found == [1, 2]


@pytest.mark.parametrize("name", ["gs://bucket/run", ""])
def test_what_is_no_folder_is_refused(pipe, name):
    for made in (Reader, Checkpoints):
        with pytest.raises(CheckpointError, match="is an address|name is ''"):
            made(name, pipe)


def test_what_a_killed_run_of_other_partitions_left_is_removed(pipe, tmp_path):
    for cut, locked in (("partitions-2/0", True), ("partitions-2/1", False)):
        (tmp_path / cut / "step_00000001-000001").mkdir(parents=True)
        if locked:
            (tmp_path / cut / "lock").touch()
    Checkpoints(tmp_path, pipe, stop_signals=())
    left = [path.parent.name for path in tmp_path.glob("partitions-2/*/step_*")]
    assert left == ["1"]  # which no run of jdaso has made


OTHERS = {
    "one removed": ({"w": PARAMS["w"][:1]}, "2 arrays of parameters, and this model has 1"),
    "one added": ({"w": [*PARAMS["w"], PARAMS["w"][0]]}, r"has no leaf .params\['w'\]\[2\]"),
    "more rows": (
        {"w": [np.ones((3, 4), np.float32), np.ones((4, 3), np.float32)]},
        r"\['w'\]\[1\] has 3 rows in the checkpoint of step 1, and 4 here",
    ),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_checkpoints_of_another_model_are_refused(pipe, tmp_path, other):
    params, said = other
    checkpoints = Checkpoints(tmp_path / "run", pipe, stop_signals=())
    checkpoints.save(1, pipe.init(PARAMS))
    checkpoints.wait()
    plan = pipeline.partition(loss_fn, params, BATCH, num_partitions=1)
    changed = pipeline.Pipeline(plan, optax.adam(1e-2), session=pipe.session)
    with pytest.raises(CheckpointError, match=said):
        Reader(tmp_path / "run", changed).restore(changed.init(params))


def shorter(session):
    """A pipeline that holds other parameters."""
    params = {"w": PARAMS["w"][:1]}
    plan = pipeline.partition(loss_fn, params, BATCH, num_partitions=1)
    made = pipeline.Pipeline(plan, optax.adam(1e-2), session=session)
    return made, made.init(params)


@pytest.mark.parametrize("left", ["nothing", "a save", "a damaged save", "a run"])
def test_a_folder_without_checkpoints_takes_other_parameters(pipe, tmp_path, left):
    """A run that ended before its first save leaves no more than its holding."""
    checkpoints = Checkpoints(tmp_path, pipe, stop_signals=())
    if "save" in left:
        checkpoints.save(1, pipe.init(PARAMS))
        checkpoints.wait()
    if left == "a damaged save":
        (manifest,) = tmp_path.glob("partitions-1/0/step_*/node_0.json")
        manifest.write_text("{")
    if left != "a run":
        pipe.session.close()
    with jdaso.Session() as session:
        other, start = shorter(session)
        if left == "nothing":
            state, begin = Checkpoints(tmp_path, other, stop_signals=()).restore(start)
            assert begin == 0 and state is start
        else:
            with pytest.raises(CheckpointError, match="hold other parameters than these do"):
                Checkpoints(tmp_path, other, stop_signals=())
