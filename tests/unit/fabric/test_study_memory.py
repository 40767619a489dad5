"""Control groups of both versions, played by folders; the kernel's own: launches/cluster."""

import pytest

from jdaso.fabric._study import memory

V2 = {"memory.max": "max", "memory.swap.max": "max"}
V1 = {"memory.limit_in_bytes": "9", "memory.memsw.limit_in_bytes": "9"}


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Tells this process's groups and the mounts as /proc does."""

    def tell(groups, mounts):
        files = {"/proc/self/cgroup": groups, "/proc/self/mounts": mounts}
        monkeypatch.setattr(memory, "_lines", lambda path: files[path])
        return [path.relative_to(tmp_path) for path in memory._groups_of_this_process()]

    return tell


def named(*names):
    return [memory.Path(name) for name in names]


def test_the_groups_of_version_2_are_those_above_this_process(tmp_path, told):
    (tmp_path / "all/user/own.scope").mkdir(parents=True)
    mounts = ["proc /proc proc rw 0 0", f"cgroup2 {tmp_path}/all cgroup2 rw,nsdelegate 0 0"]
    assert told(["0::/user/own.scope"], mounts) == named("all/user/own.scope", "all/user", "all")
    assert told(["0::/../elsewhere"], mounts) == named("all")  # of another namespace


def test_the_groups_of_version_1_are_those_with_the_controller_memory(tmp_path, told):
    for folder in ("memory/job", "unified/job"):
        (tmp_path / folder).mkdir(parents=True)
    mounts = [
        f"cgroup {tmp_path}/cpu cgroup rw,cpu 0 0",
        f"cgroup {tmp_path}/memory cgroup rw,relatime,memory 0 0",
        f"cgroup2 {tmp_path}/unified cgroup2 rw 0 0",
    ]
    found = told(["4:memory:/job", "3:cpu,cpuacct:/", "0::/"], mounts)
    assert found == named("memory/job", "memory", "unified")


@pytest.mark.parametrize(
    ("files", "limited"),
    [
        (V2, {"memory.max": "4096", "memory.swap.max": "0"}),
        (V1, dict.fromkeys(V1, "4096")),
        ({"memory.max": "max"}, {"memory.max": "4096"}),
    ],
    ids=["version 2", "version 1", "without swap"],
)
def test_the_limit_is_written_where_the_group_has_a_file(tmp_path, files, limited):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    memory._limit(tmp_path, 4096)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == limited


def test_kills_are_counted_in_the_files_of_both_versions(tmp_path):
    (tmp_path / "events").write_text("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 5\n")
    (tmp_path / "control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 40\n")
    assert memory._count(tmp_path / name for name in ("events", "control", "gone")) == 42


def test_empty_groups_of_studies_that_are_gone_are_removed(tmp_path):
    for name in ("jdaso-study-4194305-0", f"jdaso-study-{memory.os.getpid()}-9", "other-1-1"):
        (tmp_path / name).mkdir()
    memory._remove_leftovers(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [f"jdaso-study-{memory.os.getpid()}-9", "other-1-1"]
