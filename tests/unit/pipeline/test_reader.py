"""A pipeline's checkpoints are read while a run holds the folder."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso
from jdaso import pipeline
from jdaso.checkpoint import CheckpointError


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
    reader = pipeline.PipelineReader(tmp_path / "run", pipe)
    start, state = pipe.init(PARAMS), pipe.init(PARAMS)
    with pytest.raises(CheckpointError, match=r"can be read\. There is no complete one\."):
        reader.restore(start)
    checkpoints = pipeline.PipelineCheckpoints(tmp_path / "run", pipe, stop_signals=())
    params = {}
    for step in (1, 2):
        state, _ = pipe.step(state, BATCH)  # the one before is given away
        checkpoints.save(step, state)
        params[step] = jax.tree.map(np.array, state.params)
    checkpoints.wait()
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


@pytest.mark.parametrize("name", ["gs://bucket/run", ""])
def test_what_is_no_folder_is_refused(pipe, name):
    for made in (pipeline.PipelineReader, pipeline.PipelineCheckpoints):
        with pytest.raises(CheckpointError, match="is an address|name is ''"):
            made(name, pipe)


def test_what_a_killed_run_of_other_partitions_left_is_removed(pipe, tmp_path):
    for cut, locked in (("partitions-2/0", True), ("partitions-2/1", False)):
        (tmp_path / cut / "step_00000001-000001").mkdir(parents=True)
        if locked:
            (tmp_path / cut / "lock").touch()
    pipeline.PipelineCheckpoints(tmp_path, pipe, stop_signals=())
    left = [path.parent.name for path in tmp_path.glob("partitions-2/*/step_*")]
    assert left == ["1"]  # which no run of jdaso has made
