"""The folder of checkpoints: remains of saves, its lock, and other programs' changes to it."""

import contextlib
import dataclasses
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdaso
from jdaso.checkpoint import CheckpointError, Checkpoints, Reader
from jdaso.checkpoint import _complete as complete
from jdaso.checkpoint import _files as files
from jdaso.checkpoint._folder import Folder
from jdaso.checkpoint._resize import own_keys

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def session():
    with jdaso.Session() as session:
        yield session


@contextlib.contextmanager
def opened(folder, **settings):
    with jdaso.Session() as session:
        yield Checkpoints(folder, session, stop_signals=(), **settings)


def a_state(step=0):
    return {"w": jnp.full((300, 300), float(step)), "n": jnp.int32(step)}


def saves(folder):
    return sorted(path.name for path in folder.glob("step_*"))


def full(*_, **__):
    raise FULL


def half(folder, name, arrays):
    """Leaves half a save, as orbax does when the disk is full."""
    (folder / f"{name}.orbax-checkpoint-tmp").mkdir()
    (folder / f"{name}.orbax-checkpoint-tmp" / "w").write_bytes(b"half")
    raise FULL


def half_a_manifest(self, folder):
    (folder / f"node_{self.node}.json.part").write_text("half")
    raise FULL


PHASES = {
    "the folder": ("pathlib.Path.mkdir", full),
    "arrays": ("jdaso.checkpoint._arrays.write_arrays", half),
    "fsync": ("os.fsync", full),
    "checksums": ("jdaso.checkpoint._digests.checksums", full),
    "the manifest": ("jdaso.checkpoint._files.Manifest.write", half_a_manifest),
    "its name": ("os.replace", full),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_save_that_fails_leaves_nothing(phase, session, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, session, keep_last=1)
    checkpoints.save(1, a_state(1))
    checkpoints.wait()
    with monkeypatch.context() as patch:
        patch.setattr(*PHASES[phase])
        checkpoints.save(2, a_state(2))
        checkpoints._saver.join()
    assert saves(tmp_path) == ["step_00000001-000001"]
    with pytest.raises(CheckpointError, match=r"No space left .*\. Free space there\. Checkpoints"):
        checkpoints.wait()
    checkpoints.save(3, a_state(3))
    checkpoints.wait()
    assert saves(tmp_path) == ["step_00000003-000003"]


def killed(folder, phase):
    """A save as a kill leaves it in one of its phases."""
    whole = next(folder.glob("step_00000002-*"))
    cut = folder / "step_00000003-000003"
    shutil.copytree(whole, cut)
    manifest = dataclasses.replace(files.Manifest.read(cut, 0), number=3, step=3)
    (cut / "node_0.json").unlink()
    if phase == "the folder":
        shutil.rmtree(cut / "node_0")
    elif phase == "arrays":
        (cut / "node_0").rename(cut / "node_0.orbax-checkpoint-tmp")
    elif phase == "the manifest":
        (cut / "node_0.json.part").write_text("half")
    elif phase == "another node":
        dataclasses.replace(manifest, nodes=2).write(cut)
    elif phase == "removal":
        cut.rename(folder / "step_00000001-000001")


KILLED = ["the folder", "arrays", "checksums", "the manifest", "another node", "removal"]


@pytest.mark.parametrize("phase", KILLED)
def test_what_a_killed_save_left_is_removed_by_the_next_start(phase, tmp_path, caplog):
    with opened(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, a_state(step))
            checkpoints.wait()
    shutil.rmtree(next(tmp_path.glob("step_00000001-*")))
    killed(tmp_path, phase)
    with opened(tmp_path) as checkpoints:
        assert saves(tmp_path) == ["step_00000002-000002"]
        assert checkpoints.restore(a_state())[1] == 2
        checkpoints.save(4, a_state(4))
        checkpoints.wait()
    number = 3 if phase == "removal" else 4
    assert saves(tmp_path) == ["step_00000002-000002", f"step_00000004-00000{number}"]
    assert "left over from an interrupted save" in caplog.text


def test_what_cannot_be_read_is_not_taken_for_cut_short(tmp_path):
    """A damaged manifest, or a disk in trouble, is no reason to remove anything at a start."""
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, a_state(1))
    (path,) = tmp_path.glob("step_*/node_0.json")
    path.write_text(path.read_text().replace('"step": 1', '"step": 9'))
    with opened(tmp_path) as checkpoints:
        assert checkpoints.steps() == []
        assert len(saves(tmp_path)) == 1


def test_a_part_of_another_nodes_failed_save_is_removed(tmp_path):
    """Each node removes its own, as the others may still write; tests/ranks has all together."""
    folder = tmp_path / "step_00000001-000001"
    for node in (0, 1, 10):
        (folder / f"node_{node}.orbax-checkpoint-tmp").mkdir(parents=True)
        (folder / f"node_{node}").mkdir()
        (folder / f"node_{node}.json").touch()
    (folder / "common").mkdir()
    complete.give_up(folder, 1, nodes=11)
    assert complete.has_failed(folder)
    assert not list(folder.glob("node_1")) + list(folder.glob("node_1.*"))
    assert len(list(folder.glob("node_10*"))) == 3
    Folder(tmp_path, keep_last=1, keep_best=0, best="max").sweep_own(10, 1)
    Folder(tmp_path, keep_last=1, keep_best=0, best="max").sweep_own(0, 1)
    assert [path.name for path in folder.iterdir()] == ["failed"]


def test_a_reason_that_old_ones_stay_is_no_failure_of_the_save(
    session, tmp_path, monkeypatch, caplog
):
    checkpoints = Checkpoints(tmp_path, session, keep_last=1)
    monkeypatch.setattr(Folder, "prune", full)
    checkpoints.save(1, a_state(1))
    checkpoints.wait()
    assert checkpoints.steps() == [1]
    assert "Old checkpoints could not be removed" in caplog.text


def test_a_folder_that_is_deleted_is_made_again(session, tmp_path, caplog):
    folder = tmp_path / "deep" / "run"
    checkpoints = Checkpoints(folder, session)
    checkpoints.save(1, a_state(1))
    checkpoints.wait()
    shutil.rmtree(tmp_path / "deep")
    assert checkpoints.steps() == []
    with pytest.raises(CheckpointError, match="deep/run is gone"):
        checkpoints.restore(a_state())
    checkpoints.wait()
    checkpoints.save(2, a_state(2))
    assert checkpoints.restore(a_state())[1] == 2
    assert "was deleted, with all checkpoints" in caplog.text
    with jdaso.Session() as other, pytest.raises(CheckpointError, match="This program uses"):
        Checkpoints(folder, other)  # the lock is a new one too


def test_a_folder_that_another_run_has_made_anew_is_left_to_it(session, tmp_path):
    checkpoints = Checkpoints(tmp_path / "run", session)
    shutil.rmtree(tmp_path / "run")
    with jdaso.Session() as other:
        theirs = Checkpoints(tmp_path / "run", other)
        checkpoints.save(1, a_state(1))
        with pytest.raises(CheckpointError, match="This program uses"):
            checkpoints.wait()
        theirs.save(7, a_state(7))
        theirs.wait()
        assert theirs.steps() == [7]


def test_a_folder_is_not_made_again_below_a_mount_point(session, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "scratch" / "run", session)
    shutil.rmtree(tmp_path / "scratch")
    monkeypatch.setattr(checkpoints._saver._folder, "_device", -1)
    checkpoints.save(1, a_state(1))
    with pytest.raises(CheckpointError, match="is not mounted any more.* The folder is gone"):
        checkpoints.wait()
    assert not (tmp_path / "scratch").exists()


def test_a_folder_that_became_a_file_is_reported(session, tmp_path):
    checkpoints = Checkpoints(tmp_path / "run", session)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("no folder")
    checkpoints.save(1, a_state(1))
    with pytest.raises(CheckpointError, match="File exists.* The folder is gone"):
        checkpoints.wait()


def test_a_lost_permission_is_reported(session, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, session)

    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.mkdir", denied)
        checkpoints.save(1, a_state(1))
        with pytest.raises(CheckpointError, match="denied.* Give this user the right"):
            checkpoints.wait()
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.iterdir", denied)
        for call in (checkpoints.steps, lambda: checkpoints.restore(a_state())):
            with pytest.raises(CheckpointError, match="cannot be read: .*denied"):
                call()


@pytest.mark.parametrize("name", ["s3://bucket/run", "", "~nobody_of_this_name/run"])
def test_what_is_no_folder_is_refused(session, name):
    with pytest.raises(CheckpointError, match="is an address|name is ''|home in .* is not known"):
        Checkpoints(name, session)


def test_a_folder_that_cannot_be_made_is_refused_with_what_to_do(session, tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run", "/proc/self/run"):
        with pytest.raises(CheckpointError, match="cannot be used .* Give a folder in which"):
            Checkpoints(path, session)


def test_a_name_is_expanded_and_stays_where_it_is(session, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    checkpoints = Checkpoints("~/run", session)
    monkeypatch.setenv("HOME", "/nowhere")
    assert checkpoints.folder == tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    relative = Checkpoints("relative", session)
    monkeypatch.chdir("/")
    relative.save(1, a_state(1))
    relative.wait()
    assert len(saves(tmp_path / "relative")) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*")
@pytest.mark.parametrize("in_thread", [False, True])
def test_the_lock_is_not_left_to_forked_processes(tmp_path, in_thread):
    children = []

    def fork():
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)

    try:
        with opened(tmp_path):
            if in_thread:
                thread = threading.Thread(target=fork)
                thread.start()
                thread.join(20)
            else:
                fork()
            with jdaso.Session() as other, pytest.raises(CheckpointError, match="This program"):
                Checkpoints(tmp_path, other)
        with opened(tmp_path):
            pass
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


ENDS = """
import os, signal, sys
from pathlib import Path
from jdaso.checkpoint._folder import Folder

folder = Folder(Path(sys.argv[1]), keep_last=1, keep_best=0, best="max")
folder.take("run")
child = os.fork()
if child == 0:
    os.close(1)
    signal.pause()
print(child, flush=True)
os._exit(9)
"""


def test_the_lock_of_a_killed_run_ends_though_its_children_live(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path)], stdout=subprocess.PIPE, timeout=100, text=True
    )
    child = int(found.stdout)
    try:
        with opened(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_that_inherited_the_lock_is_named(tmp_path, session):
    """A process that got the open file without Python's hooks."""
    taken = Folder(tmp_path, keep_last=1, keep_best=0, best="max")
    taken.take("run")
    here = socket.gethostname()
    with open(tmp_path / "lock") as lock:
        taken._lock._file.truncate(0)
        taken._lock._file.write(f"process 99999999 on host {here}\n")
        taken._lock._file.flush()
        number = taken._lock._file.fileno()
        holder = subprocess.Popen(["sleep", "100"], pass_fds=[number])
        try:
            taken._lock.leave()
            from jdaso.checkpoint import _lock

            _lock._held.clear()
            lock.close()
            said = f"Another run uses .*process {holder.pid}, started by process 99999999 on host"
            with pytest.raises(CheckpointError, match=said):
                Checkpoints(tmp_path, session)
        finally:
            holder.kill()
            holder.wait()


def test_a_damaged_manifest_is_no_missing_checkpoint(tmp_path, caplog):
    """It is reported, stays, and a run does not begin anew without a word."""
    with opened(tmp_path, keep_last=2) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, a_state(step))
    newest = tmp_path / saves(tmp_path)[-1] / "node_0.json"
    newest.write_text(newest.read_text()[:100])
    with opened(tmp_path, keep_last=2) as checkpoints:
        assert checkpoints.restore(a_state())[1] == 1
        assert "Skips a checkpoint" in caplog.text and newest.parent.name in caplog.text
        for step in (3, 4, 5):
            checkpoints.save(step, a_state(step))
        checkpoints.wait()
        assert checkpoints.steps() == [4, 5]
        assert newest.exists(), "perhaps the file system has a problem that passes"
    for path in tmp_path.glob("step_*/node_0.json"):
        path.write_text("{}")
    with opened(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match="No checkpoint .* is missing or damaged"):
            checkpoints.restore(a_state())
        with pytest.raises(CheckpointError, match="No checkpoint of step 4 .* can be restored"):
            checkpoints.restore(a_state(), 4)
        with pytest.raises(CheckpointError, match="is missing or damaged"):
            Reader(tmp_path, checkpoints.session).restore(a_state())


def test_a_run_that_has_lost_its_folder_touches_nothing_there(tmp_path):
    """Another run has made the folder again, and has saves of the same names."""
    folder = tmp_path / "run"
    with opened(folder) as first:
        first.save(1, a_state(1))
        first.wait()
        shutil.rmtree(folder)
        program = (
            "import sys, jdaso, numpy as np\n"
            "from jdaso.checkpoint import Checkpoints\n"
            "with jdaso.Session() as session:\n"
            "    checkpoints = Checkpoints(sys.argv[1], session)\n"
            "    for step in (1, 2, 3):\n"
            "        checkpoints.save(step, {'w': np.zeros(3)})\n"
            "    checkpoints.wait()\n"
            "    print('saved', flush=True)\n"
            "    sys.stdin.readline()\n"
        )
        second = subprocess.Popen(
            [sys.executable, "-c", program, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert second.stdout.readline() == "saved\n"
            (folder / "step_00000001-000001").mkdir()  # a save of it that is being written
            for step in (2, 3):
                with pytest.raises(CheckpointError, match="Another run uses"):
                    first.save(step, a_state(step))
                    first.wait()
            assert len(saves(folder)) == 3
        finally:
            second.communicate("\n", timeout=60)


def test_a_rank_that_holds_no_lock_knows_the_folder_of_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr("jdaso.checkpoint._folder._SEEN_SECONDS", 0.2)
    owner, other = Folder(tmp_path / "run"), Folder(tmp_path / "run")
    owner.take("mine")
    for one in (owner, other):
        one.remember("mine")
    other.make_again()
    shutil.rmtree(owner.path)
    with pytest.raises(CheckpointError, match="has not created it again"):
        other.make_again()
    owner.make_again()
    other.make_again()
    (owner.path / "run").write_text("another")
    with pytest.raises(CheckpointError, match="Another run uses"):
        other.make_again()
    owner.give_back()


def test_a_mount_point_without_its_file_system_is_not_used(tmp_path):
    """The folder is there, on the file system below."""
    folder = Folder(tmp_path / "run")
    folder.take("mine")
    folder.remember("mine")
    shutil.rmtree(folder.path)
    folder.path.mkdir()
    folder._device -= 1  # pyright: ignore
    with pytest.raises(OSError, match="not mounted any more"):
        folder.make_again()
    folder.give_back()


@pytest.mark.parametrize("ends", ["", "raise SystemExit(0)"])
def test_a_save_is_finished_when_the_program_ends_and_the_session_is_open(tmp_path, ends):
    program = (
        "import sys, jdaso, numpy as np\n"
        "from jdaso.checkpoint import Checkpoints\n"
        "checkpoints = Checkpoints(sys.argv[1], jdaso.Session(), every_steps=1)\n"
        "for step in (1, 2):\n"
        f"    checkpoints.after(step, {{'w': np.zeros(10**6)}})\n{ends}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], text=True, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    with opened(tmp_path) as checkpoints:
        assert checkpoints.steps() == [1, 2]


@pytest.mark.parametrize(
    "state",
    [
        {name: np.arange(10.0**5)}
        for name in ("checkpoint", "_METADATA", "_sharding", "descriptor", "array_metadatas")
    ]
    + [
        {"jdaso": {"small": np.arange(10.0**5)}, "x": np.arange(3.0)},
        {"commit_success.txt": np.arange(10.0**5), "exchange0": {"sums": np.zeros(3)}},
        {"large": np.arange(10**5, dtype=">f4"), "small": np.arange(3, dtype=">i8")},
    ],
    ids=lambda state: next(iter(state)),
)
def test_names_and_byte_orders_of_leaves_are_free(tmp_path, state):
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.wait()
        like = jax.tree.map(np.zeros_like, state)
        restored, _ = checkpoints.restore(like)
    jax.tree.map(np.testing.assert_array_equal, restored, state)


@pytest.mark.parametrize(
    "dtype", ["int4", "uint4", "int2", "uint2", "float8_e4m3fn", "longdouble", "datetime64[s]"]
)
def test_large_arrays_of_any_numbers_are_saved(tmp_path, dtype):
    """Tensorstore does not know all of them: then their bytes are written."""
    numbers = np.random.default_rng(0).integers(0, 2, (100_000, 3))
    array = numbers.astype(dtype if dtype[-1] == "]" else jnp.dtype(dtype)).T
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": array})
        checkpoints.wait()
        restored, _ = checkpoints.restore({"x": np.zeros_like(array)})
    np.testing.assert_array_equal(restored["x"], array)


def test_arrays_of_records_are_refused_at_once(tmp_path):
    with opened(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match=r"Leaf \['x'\] .*only numbers"):
            checkpoints.save(1, {"x": np.zeros(3, [("a", "f4"), ("b", "i4")])})


def test_steps_are_whole_numbers_of_any_kind(tmp_path):
    with opened(tmp_path, every_steps=2) as checkpoints:
        for step in (np.int64(1), jnp.int32(2), 3):
            checkpoints.after(step, a_state())
        checkpoints.save(np.uint8(7), a_state())
        checkpoints.wait()
        assert checkpoints.steps() == [2, 7]
        for wrong, kind in ((-1, ValueError), (2.0, TypeError)):
            with pytest.raises(kind):
                checkpoints.save(wrong, a_state())
            with pytest.raises(kind):
                checkpoints.after(wrong, a_state())


def test_new_nodes_have_keys_that_no_old_node_uses():
    old = jax.random.key_data(jax.random.split(jax.random.key(3), 2))
    used = {tuple(x) for key in old for x in np.asarray(of_split(key)).tolist()}
    impl = jax.random.key_impl(jax.random.key(0))
    keys = [own_keys(np.asarray(old), impl, node) for node in range(6)]
    new = {tuple(key.tolist()) for key in keys}
    assert len(new) == 6
    assert not new & used


def of_split(key):
    """The keys that a program makes of one at once."""
    key = jax.random.wrap_key_data(key)
    made = [jax.random.split(key, 4), *(jax.random.fold_in(key, k)[None] for k in range(8))]
    return jax.random.key_data(jnp.concatenate(made))


def test_a_folder_is_swept_up_to_a_number(tmp_path):
    """A new node 0 takes the folder while others may be writing the save after the last."""
    for number in (3, 4):
        (tmp_path / f"step_0000000{number}-00000{number}").mkdir()
    folder = Folder(tmp_path)
    folder.take("run", 3)
    assert saves(tmp_path) == ["step_00000004-000004"]
    folder.give_back()
    folder.take("run")
    assert saves(tmp_path) == []
    folder.give_back()


@pytest.mark.parametrize("mounted", [True, False])
def test_of_a_link_to_an_archive_only_the_link_is_removed(mounted, tmp_path):
    """And not even that while the archive is away, which may come back."""
    folder, archive = tmp_path / "run", tmp_path / "archive"
    with opened(folder) as checkpoints:
        checkpoints.save(1, a_state(1))
        checkpoints.wait()
    name = saves(folder)[0]
    (folder / name).rename(archive)
    (folder / name).symlink_to(archive, target_is_directory=True)
    if not mounted:
        archive.rename(tmp_path / "away")
    with opened(folder, keep_last=1) as checkpoints:
        for step in (2, 3):
            checkpoints.save(step, a_state(step))
            checkpoints.wait()
    assert (name in saves(folder)) == (not mounted)
    kept = archive if mounted else tmp_path / "away"
    assert files.Manifest.read(kept, 0).step == 1
