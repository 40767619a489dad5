"""Checkpoints of one node: kept, refused, restored; damage in any byte is found."""

import fcntl
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdaso
from jdaso._launch.guard import LAUNCH
from jdaso.checkpoint import CheckpointError, Checkpoints, _lock
from jdaso.checkpoint import _arrays as arrays
from jdaso.checkpoint import _files as files

FUZZED = int(os.environ.get("JDASO_TEST_FUZZED", "60"))


@pytest.fixture
def session():
    with jdaso.Session() as session:
        yield session


@pytest.fixture
def checkpoints(session, tmp_path):
    return Checkpoints(tmp_path / "run", session, keep_last=2)


def a_state(seed=0):
    """Leaves of all kinds, small ones and one that is a file of its own."""
    draw = np.random.default_rng(seed)
    params = {
        "w": jnp.asarray(draw.normal(size=(300, 300)), jnp.float32),
        "half": jnp.asarray(draw.normal(size=5), jnp.bfloat16),
        "none": jnp.zeros((0, 3)),
        "a/b": jnp.asarray([True, False]),
        "a_b": jnp.asarray(3, jnp.int8),
        "wave": jnp.asarray(1 + 2j),
    }
    return {
        "params": params,
        "adam": optax.adam(1e-3).init(params["w"]),
        "key": jax.random.split(jax.random.key(seed), 3),
        "old key": jax.random.PRNGKey(seed),
        "epoch": seed,
        "rate": 0.1 * seed,
        "done": bool(seed),
        "numpy": np.float64(1) / 3 + seed,
        "order": draw.permutation(7),
        "weak": jnp.asarray(1.0),
    }


def assert_same(a, b):
    flat_a, tree_a = jax.tree.flatten(a)
    flat_b, tree_b = jax.tree.flatten(b)
    assert tree_a == tree_b
    for x, y in zip(flat_a, flat_b, strict=True):
        assert type(x) is type(y)
        assert jnp.result_type(x) == jnp.result_type(y)
        assert getattr(x, "weak_type", None) == getattr(y, "weak_type", None)
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_every_kind_of_leaf_comes_back_as_it_was(checkpoints):
    checkpoints.save(7, a_state(1))
    restored, step = checkpoints.restore(a_state(2))
    assert step == 7
    assert_same(restored, a_state(1))


def test_without_a_checkpoint_a_run_begins(checkpoints):
    state = a_state()
    assert checkpoints.restore(state) == (state, 0)
    with pytest.raises(CheckpointError, match="step 3 .* There is none"):
        checkpoints.restore(state, 3)


def test_the_last_stay_and_the_best(session, tmp_path):
    checkpoints = Checkpoints(tmp_path, session, keep_last=2, keep_best=1, best="min")
    for step, score in enumerate([5.0, 1.0, 4.0, 3.0, 2.0]):
        checkpoints.save(step, {"x": jnp.zeros(2)}, score)
    checkpoints.wait()
    assert checkpoints.steps() == [1, 3, 4]


def test_what_was_changed_after_a_save_is_not_in_it(checkpoints, monkeypatch):
    """Also for a later save, which reuses the buffers: neither holds the change."""
    go_on, write = threading.Event(), arrays.write_arrays
    monkeypatch.setattr(arrays, "write_arrays", lambda *args: go_on.wait(60) and write(*args))
    for step in (1, 2):
        go_on.clear()
        x = np.arange(5) + step
        checkpoints.save(step, {"x": x})
        x[:] = 0
        go_on.set()
        assert checkpoints.restore({"x": x})[0]["x"].tolist() == list(range(step, 5 + step))


@pytest.mark.parametrize("old, new", [('"step": 1,', '"step": 9,'), ('"nodes": 1,', '"nodes": 2,')])
def test_a_manifest_that_was_changed_is_refused(checkpoints, old, new):
    checkpoints.save(1, {"x": jnp.zeros(3)})
    checkpoints.wait()
    (path,) = checkpoints.folder.glob("step_*/node_0.json")
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(files.DamagedError, match="its checksum differs"):
        files.Manifest.read(path.parent, 0)
    assert checkpoints.steps() == []


def test_donated_numbers_are_saved_before_they_are_gone(checkpoints):
    double = jax.jit(lambda x: 2 * x, donate_argnums=0)
    x = jnp.arange(1e6)
    for step in range(4):
        checkpoints.save(step, {"x": x})
        x = double(x)
    checkpoints.wait()
    restored = checkpoints.restore({"x": x}, 3)[0]["x"]
    np.testing.assert_array_equal(restored, 8 * np.arange(1e6))


def test_what_is_not_complete_is_never_used(checkpoints):
    """Removes files as a kill does: no manifest, or half of one."""
    for step in (1, 2):
        checkpoints.save(step, {"x": jnp.full(3, step)})
    checkpoints.wait()
    (newest,) = checkpoints.folder.glob("step_00000002-*")
    manifest = files.manifest_path(newest, 0)
    manifest.rename(manifest.with_suffix(".json.part"))
    assert checkpoints.steps() == [1]
    assert checkpoints.restore({"x": jnp.zeros(3, int)})[1] == 1


def test_two_runs_do_not_share_a_folder(tmp_path, session):
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 7 on host far")
        lock.flush()
        with pytest.raises(CheckpointError, match=r"Another run uses .*\(process 7 on host far\)"):
            Checkpoints(tmp_path, session)


def test_a_restarted_job_waits_for_the_lock_of_a_lost_host(tmp_path, session, monkeypatch, caplog):
    """A file server keeps the lock of a host that has failed for a while."""
    monkeypatch.setenv(LAUNCH, "launch")
    monkeypatch.setattr(_lock, "_PAUSE_SECONDS", 0.05)
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 7 on host far")
        lock.flush()
        release = threading.Timer(0.3, fcntl.flock, [lock, fcntl.LOCK_UN])
        release.start()
        Checkpoints(tmp_path, session)
        release.join()
    assert "is locked by process 7 on host far" in caplog.text


def test_a_program_does_not_use_a_folder_twice_at_once(checkpoints, session):
    with pytest.raises(CheckpointError, match=f"This program uses .*process {os.getpid()}"):
        Checkpoints(checkpoints.folder, session)


def test_the_lock_ends_with_the_session(tmp_path):
    for _ in range(2):
        with jdaso.Session() as session:
            Checkpoints(tmp_path, session)
    with open(tmp_path / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_is_no_number_is_refused(checkpoints):
    with pytest.raises(CheckpointError, match=r"Leaf \['name'\] is a str"):
        checkpoints.save(1, {"name": "resnet"})


def test_a_session_closes_though_a_save_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "write_arrays", mock.Mock(side_effect=OSError("disk full")))
    session = jdaso.Session()
    Checkpoints(tmp_path, session).save(1, {"x": jnp.zeros(3)})
    with pytest.raises(CheckpointError, match="disk full"):
        session.close()
    assert session.closed


def test_a_failed_save_is_reported_and_the_one_before_it_stays(checkpoints, caplog, monkeypatch):
    checkpoints.save(1, {"x": jnp.zeros(3)})
    checkpoints.wait()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrays, "write_arrays", full)
    checkpoints.save(2, {"x": jnp.zeros(3)})
    with pytest.raises(
        CheckpointError, match="step 2.* No space left .* before it are still there"
    ):
        checkpoints.wait()
    assert "No space left" in caplog.text
    assert checkpoints.steps() == [1]


@pytest.mark.parametrize(
    ("like", "said"),
    [
        ({"x": jnp.zeros(4)}, r"Leaf \['x'\] is float32\[3\] in the checkpoint and float32\[4\]"),
        ({"x": jnp.zeros(3, jnp.bfloat16)}, r"Leaf \['x'\] is float32\[3\].* and bfloat16\[3\]"),
        ({"y": jnp.zeros(3)}, r"has no leaf \['y'\]"),
        ({}, r"has a leaf \['x'\], float32\[3\], which the state here lacks"),
    ],
)
def test_another_tree_is_refused(checkpoints, like, said):
    checkpoints.save(1, {"x": jnp.zeros(3)})
    with pytest.raises(CheckpointError, match=said):
        checkpoints.restore(like)


def damage(folder, draw):
    """Causes one fault of a disk or a user; returns its name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    path, other = draw.sample(paths, 2)
    data = bytearray(path.read_bytes())
    kind = draw.choice(["flip", "cut", "swap", "remove", "grow", "zero"])
    if kind == "flip" and data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del data[draw.randrange(len(data) + 1) :]
    elif kind == "swap":
        data[:] = other.read_bytes()
        other.write_bytes(path.read_bytes())
    elif kind == "grow":
        data += bytes([draw.randrange(256)])
    elif kind == "zero":
        data = bytearray(len(data))
    path.write_bytes(data)
    if kind == "remove":
        path.unlink()
    return f"{kind} {path.name} {other.name}"


def test_a_damaged_checkpoint_is_refused_or_read_right(checkpoints, tmp_path):
    state = a_state(1)
    checkpoints.save(1, state)
    checkpoints.wait()
    (folder,) = checkpoints.folder.glob("step_*")
    shutil.copytree(folder, tmp_path / "whole")
    refused = 0
    for seed in range(FUZZED):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "whole", folder)
        what = damage(folder, random.Random(seed))
        try:
            restored, step = checkpoints.restore(a_state(2), 1)
        except CheckpointError:
            refused += 1
        else:
            assert step == 1, what
            assert_same(restored, state)
    assert refused > FUZZED / 2


def test_damage_has_the_name_of_a_leaf(checkpoints):
    checkpoints.save(1, a_state(1))
    checkpoints.wait()
    (folder,) = checkpoints.folder.glob("step_*")
    (large,) = folder.glob("*/params.w/0.0")
    large.write_bytes(bytes(large.stat().st_size))
    with pytest.raises(CheckpointError, match=r"leaf \['params'\]\['w'\]"):
        checkpoints.restore(a_state(), 1)


def test_a_checkpoint_cannot_run_code(checkpoints, tmp_path):
    """No content of its files is executed."""

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    checkpoints.save(1, a_state(1))
    checkpoints.wait()
    for path in [
        p for p in checkpoints.folder.rglob("*") if p.is_file() and p.name not in ("lock", "run")
    ]:
        whole = path.read_bytes()
        path.write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(CheckpointError):
            checkpoints.restore(a_state(), 1)
        path.write_bytes(whole)
    assert not (tmp_path / "exploded").exists()
    assert checkpoints.restore(a_state(), 1)[1] == 1


@pytest.mark.parametrize(
    "settings", [{"every_steps": 0}, {"keep_last": 0}, {"keep_best": -1}, {"best": "most"}]
)
def test_settings_out_of_range_are_refused(session, tmp_path, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Checkpoints(tmp_path, session, **settings)


def test_a_run_that_went_back_goes_on_from_there(session, tmp_path):
    """The newest checkpoint is the one saved last, whatever its step."""
    checkpoints = Checkpoints(tmp_path, session, keep_last=3)
    for step in (2, 8, 10):
        checkpoints.save(step, {"x": jnp.full(2, step)})
    assert checkpoints.restore({"x": jnp.zeros(2, int)}, 2)[1] == 2
    for step in (4, 5):
        checkpoints.save(step, {"x": jnp.full(2, step)})
    checkpoints.wait()
    assert checkpoints.steps() == [4, 5, 10]
    assert checkpoints.restore({"x": jnp.zeros(2, int)})[1] == 5


def test_a_step_that_is_saved_twice_is_there_twice(session, tmp_path):
    """A second save does not touch the first."""
    checkpoints = Checkpoints(tmp_path, session, keep_last=1, keep_best=1)
    checkpoints.save(3, {"x": jnp.zeros(2)}, score=1.0)
    checkpoints.save(3, {"x": jnp.ones(2)})
    checkpoints.wait()
    assert len(list(tmp_path.glob("step_00000003-*"))) == 2
    restored, _ = checkpoints.restore({"x": jnp.zeros(2)}, 3)
    assert restored["x"].tolist() == [1, 1]


def test_a_failure_is_forgotten_with_the_next_save(checkpoints, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "write_arrays", mock.Mock(side_effect=OSError("disk full")))
        checkpoints.save(1, {"x": jnp.zeros(3)})
        checkpoints._saver.join()
    checkpoints.save(2, {"x": jnp.zeros(3)})
    checkpoints.wait()
    assert checkpoints.steps() == [2]


PARTED = """
import jax, jax.numpy as jnp, numpy as np
from jdaso.checkpoint import CheckpointError
from jdaso.checkpoint._state import from_host, to_host, values_of

devices = jax.devices()[:2]
mesh = jax.make_mesh((2,), ("local",), devices=devices)
everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
shards = [jax.device_put(jnp.full(3, k), device) for k, device in enumerate(devices)]
parted = jax.make_array_from_single_device_arrays((3,), everywhere, shards)
here = values_of({"x": parted, "n": jnp.int32(4)}, shares=True, parted=2)
assert [value.leaf.shape for value in here] == [(), (2, 3)]
array = to_host(here[1], None)
assert array.tolist() == [[0, 0, 0], [1, 1, 1]]
(like,) = values_of({"x": jnp.zeros(3)}, shares=True)
back = from_host(like, array, mesh)
assert [int(np.asarray(x.data)[0]) for x in back.addressable_shards] == [0, 1]

turned = jax.sharding.Mesh(np.array(devices[::-1]), ("local",))
other = jax.sharding.NamedSharding(turned, jax.sharding.PartitionSpec())
(like,) = values_of({"x": jax.device_put(jnp.zeros(3), other)}, shares=True)
back = from_host(like, array, mesh)
assert back.sharding == other
assert {x.device: int(np.asarray(x.data)[0]) for x in back.addressable_shards} == {
    devices[1]: 0, devices[0]: 1
}

square = jax.make_mesh((2, 2), ("data", "model"))
for spec, parts in ((("model",), 2), ((("data", "model"),), 4)):
    of_spec = jax.sharding.NamedSharding(square, jax.sharding.PartitionSpec(*spec))
    x = jax.device_put(jnp.zeros(8), of_spec)
    try:
        values_of({"x": x}, shares=True, parted=4)
        assert parts == 4
    except CheckpointError as error:
        assert parts == 2 and "leaf ['x'] is divided over some of them" in str(error)
"""


def test_replicas_that_had_parted_come_back_each():
    """Two devices of a process hold different numbers of an array that is called replicated.

    In the order of the array's own mesh. Copies of parts that had parted are refused.
    """
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", PARTED], env=os.environ | flags, timeout=120, check=True)


def test_what_the_programs_handler_raised_is_the_cause_of_the_end(session, tmp_path):
    """`sys.exit` in a handler of SIGTERM does not end the run before it is saved."""
    number, cause = signal.SIGUSR2, SystemExit(3)
    before = signal.signal(number, mock.Mock(side_effect=cause))
    try:
        checkpoints = Checkpoints(tmp_path, session, stop_signals=[number])
        signal.raise_signal(number)
        with pytest.raises(jdaso.Stopped) as stopped:
            checkpoints.after(3, {"x": jnp.zeros(3)})
    finally:
        signal.signal(number, before)
    assert stopped.value.__cause__ is cause and checkpoints.steps() == [3]


def test_signals_that_cannot_be_taken_are_refused(session, tmp_path):
    with pytest.raises(ValueError, match="stop_signals .* got <Signals.SIGKILL: 9>"):
        Checkpoints(tmp_path / "run", session, stop_signals=[signal.SIGKILL])
    assert not (tmp_path / "run").exists()
