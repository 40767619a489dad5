"""Checkpoints are read while a run holds the folder, and nothing in it is touched."""

import os
import shutil
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso
from jdaso.checkpoint import CheckpointError, Checkpoints, Reader
from jdaso.checkpoint import _arrays as arrays
from jdaso.checkpoint import _files as files


@pytest.fixture
def session():
    with jdaso.Session() as session:
        yield session


@pytest.fixture
def run(tmp_path):
    """A run that has the folder, in a session of its own."""
    with jdaso.Session() as session:
        yield Checkpoints(tmp_path / "run", session, keep_last=2)


def a_state(step=0):
    params = {"w": jnp.full((300, 300), float(step)), "b": jnp.full(3, float(step), jnp.bfloat16)}
    return {
        "params": params,
        "optimizer": optax.adam(1e-3).init(params),
        "key": jax.random.key(step),
        "epoch": step,
    }


def saved(run, *steps):
    for step in steps:
        run.save(step, a_state(step))
    run.wait()


def content(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def same(a, b):
    a, b = (jax.tree.map(np.asarray, x, is_leaf=lambda x: False) for x in (a, b))
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def test_it_reads_beside_the_run_and_touches_nothing(run, session):
    saved(run, 1, 2)
    before = content(run.folder)
    reader = Reader(run.folder, session)
    assert reader.steps() == [1, 2]
    for step in (2, 1):
        state, found = reader.restore(a_state(), None if step == 2 else step)
        assert found == step and state["epoch"] == step
        assert same(state["params"], a_state(step)["params"])
        assert jax.random.key_data(state["key"]).tolist() == [0, step]
    assert content(run.folder) == before
    saved(run, 3)
    assert reader.restore(a_state())[1] == 3


def test_only_what_is_asked_for_is_read(run, session):
    saved(run, 1)
    (folder,) = run.folder.glob("step_*")
    for moment in folder.glob("node_0/optimizer*"):
        shutil.rmtree(moment)
    state, step = Reader(run.folder, session).restore({"params": a_state()["params"]})
    assert step == 1 and same(state["params"], a_state(1)["params"])
    with pytest.raises(CheckpointError, match="optimizer"):
        Reader(run.folder, session).restore(a_state())


@pytest.mark.parametrize(
    ("like", "said"),
    [
        ({"params": {"w": jnp.zeros(4)}}, r"\['params'\]\['w'\] is float32\[300,300\]"),
        ({"x": jnp.zeros(3)}, r"\['x'\] is absent"),
    ],
)
def test_another_tree_is_refused(run, session, like, said):
    saved(run, 1)
    with pytest.raises(CheckpointError, match=said):
        Reader(run.folder, session).restore(like)


def test_where_there_is_none_nothing_is_made_up(run, session, tmp_path):
    for folder in (run.folder, tmp_path / "not there yet"):
        reader = Reader(folder, session)
        assert reader.steps() == []
        with pytest.raises(CheckpointError, match=f"in {folder} .* There is no complete one yet"):
            reader.restore(a_state())
    assert not (tmp_path / "not there yet").exists()
    saved(run, 1)
    with pytest.raises(CheckpointError, match="no complete one of step 7"):
        Reader(run.folder, session).restore(a_state(), 7)


def test_the_mean_of_the_runs_nodes_is_read(run, session):
    """Reads a checkpoint of three nodes, in any order; integers are node 0's."""
    saved(run, 1, 2)
    parts = [a_state(k) for k in (5, 1, 3)]
    (folder,) = run.folder.glob("step_00000001-*")
    others = []
    for node, part in enumerate(parts):
        run.save(10 + node, part)
        run.wait()
        (other,) = run.folder.glob(f"step_000000{10 + node}-*")
        others.append(shutil.copytree(other, run.folder.parent / str(node)))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for node, other in enumerate(others):
        manifest = files.Manifest.read(other, 0)
        shutil.copytree(other / "node_0", folder / f"node_{node}")
        names = {name.replace("node_0", f"node_{node}", 1): x for name, x in manifest.files.items()}
        about = {"step": 1, "number": 99, "node": node, "nodes": 3, "files": names}
        files.dataclasses.replace(manifest, **about).write(folder)
    folder.rename(run.folder / "step_00000001-000099")
    state, step = Reader(run.folder, session).restore(
        {k: a_state()[k] for k in ("params", "epoch")}
    )
    assert step == 1 and state["epoch"] == 5
    assert same(state["params"], a_state(3)["params"])


def test_one_that_is_removed_as_it_is_read_gives_way_to_a_newer_one(run, session, monkeypatch):
    saved(run, 1)
    read = arrays.read_arrays

    def removed(folder, *args):
        monkeypatch.setattr("jdaso.checkpoint._resize.read_arrays", read)
        saved(run, 2, 3, 4)
        assert not folder.exists()
        return read(folder, *args)

    monkeypatch.setattr("jdaso.checkpoint._resize.read_arrays", removed)
    state, step = Reader(run.folder, session).restore(a_state())
    assert step == 4 and same(state["params"], a_state(4)["params"])


def test_a_damaged_one_is_left_out(run, session, caplog):
    saved(run, 1, 2)
    for path in run.folder.glob("step_00000002-*/node_0/params.w/0.0"):
        path.write_bytes(bytes(path.stat().st_size))
    reader = Reader(run.folder, session)
    assert reader.restore(a_state())[1] == 1
    assert "leaf ['params']['w']" in caplog.text
    with pytest.raises(CheckpointError, match=r"\['params'\]\['w'\]"):
        reader.restore(a_state(), 2)


def test_it_follows_a_run(run, session):
    """Yields each newest checkpoint once; skips overtaken and damaged ones; ends at the limit."""
    reader, found = Reader(run.folder, session), []
    saved(run, 1, 2)
    for state, step in reader.follow(a_state(), poll_seconds=0.01, limit_seconds=0.1):
        assert state["epoch"] == step
        found.append(step)
        if step == 2:
            saved(run, 3, 4)
        elif step == 4:
            saved(run, 5)
            (path,) = run.folder.glob("step_00000005-*/node_0/params.w/0.0")
            path.unlink()
    assert found == [2, 4]


def test_one_that_its_run_removes_before_it_is_read_is_skipped(run, session, monkeypatch):
    saved(run, 1)
    reader = Reader(run.folder, session)
    await_newer = reader._await_newer

    def overtaken(last, *limits):
        newest = await_newer(last, *limits)
        if not last:
            saved(run, 2, 3, 4)  # and keeps two
        return newest

    monkeypatch.setattr(reader, "_await_newer", overtaken)
    following = reader.follow(a_state(), poll_seconds=0.01, limit_seconds=0.1)
    assert [step for _, step in following] == [4]


def test_it_follows_a_folder_that_was_made_anew(run, session):
    """Numbers begin again when a run restarts, and a step may come again."""
    reader = Reader(run.folder, session)
    saved(run, 1, 2)
    following = reader.follow(a_state(), poll_seconds=0.01, limit_seconds=0.1)
    assert next(following)[1] == 2
    shutil.rmtree(run.folder)
    with jdaso.Session() as other:
        saved(Checkpoints(run.folder, other), 2)
    assert next(following)[1] == 2
    assert list(following) == []


@pytest.mark.parametrize("limits", [{"poll_seconds": 0}, {"limit_seconds": -1}])
def test_limits_out_of_range_are_refused(run, session, limits):
    with pytest.raises(ValueError, match=next(iter(limits))):
        next(Reader(run.folder, session).follow(a_state(), **limits))


def test_a_folder_that_may_only_be_read_is_read(run, session, monkeypatch):
    saved(run, 1)
    denied = mock.Mock(side_effect=PermissionError("read-only"))
    opened = os.open

    def read_only(path, flags, *args, **kwargs):
        return denied() if flags else opened(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", read_only)
    for name in ("mkdir", "replace", "unlink", "rename"):
        monkeypatch.setattr(os, name, denied)
    assert Reader(run.folder, session).restore({"params": a_state()["params"]})[1] == 1
