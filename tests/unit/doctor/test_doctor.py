"""The parts of the doctor that need no machine: lines, pairs, versions, addresses, advice."""

import contextlib
import itertools
import os
import socket
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdaso._launch import gpus
from jdaso.cli import doctor as cli_doctor
from jdaso.cli import main
from jdaso.doctor import (
    _advice,
    _connections,
    _examine,
    _findings,
    _launcher,
    _machine,
    _probe,
    _software,
    _talk,
    _together,
)
from jdaso.doctor._findings import Finding, SharedFinding
from jdaso.doctor._probe import PartProgress


def test_what_ranks_share_is_one_line_and_what_differs_names_them():
    same, one, other = (
        Finding("a", "x"),
        Finding("b", "1", alike=True),
        Finding("b", "2", alike=True),
    )
    lines = _findings.merged({0: [same, one], 1: [same, other], 2: [same, one]})
    assert [(line.finding.found, line.ranks) for line in lines] == [
        ("x", (0, 1, 2)),
        ("1", (0, 2)),
        ("2", (1,)),
    ]
    assert [line.finding.ok for line in lines] == [True, False, False]
    assert "one environment on all hosts" in lines[2].finding.remedy


def test_what_may_differ_is_no_trouble():
    lines = _findings.merged({0: [Finding("host", "a")], 1: [Finding("host", "b")]})
    assert all(line.finding.ok for line in lines) and len(lines) == 2


def test_a_report_says_what_whose_and_what_to_do():
    lines = [
        SharedFinding(Finding("jax", "0.10.2"), (0, 1, 2, 3)),
        SharedFinding(Finding("folder", "cannot be written", False, "Mend it."), (1, 2, 3)),
    ]
    assert _findings.written(lines, ["n0", "n0", "n1", "n1"]).splitlines() == [
        "ok       jax     0.10.2 (all 4 ranks)",
        "TROUBLE  folder  cannot be written (ranks 1-3, on 2 hosts, n0, n1)",
        "                 -> Mend it.",
    ]


def test_long_lines_are_wrapped():
    text = _findings.written([SharedFinding(Finding("x", "word " * 60, False, "do " * 60))], ["n0"])
    assert max(map(len, text.splitlines())) <= 100


@given(st.sets(st.integers(0, 60), min_size=1))
def test_numbers_in_runs_are_the_same_numbers(ranks):
    found = set()
    for part in _findings.numbered(sorted(ranks)).split(", "):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == ranks


@given(st.sets(st.integers(0, 40), min_size=2, max_size=17))
def test_all_pairs_meet_once_and_nobody_is_in_two_pairs_of_a_round(members):
    rounds = _talk.rounds(sorted(members))
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == sorted(itertools.combinations(sorted(members), 2))
    for pairs in rounds:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))


def test_one_rank_of_each_machine_is_measured_or_all_of_a_single_one():
    assert _talk.leaders({0: "a", 1: "a", 2: "b", 3: "b"}) == [0, 2]
    assert _talk.leaders({0: "a", 1: "a", 2: "a"}) == [0, 1, 2]


def figures(rates):
    return [
        {"pair": pair, "latency_seconds": 1e-5, "bytes_per_second": rate}
        for pair, rate in rates.items()
    ]


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ({(0, 1): 1e8}, []),
        ({(0, 1): 1e8, (0, 2): 1e8, (1, 2): 0.9e8}, []),
        ({(0, 1): 1e8, (0, 2): 1e8, (1, 2): 0.4e8}, [(1, 2)]),
        ({(0, 1): 1e8, (0, 2): 0.1e8, (1, 2): 0.1e8}, [(0, 2), (1, 2)]),  # host 2, and the median
    ],
)
def test_slow_pairs_are_those_far_below_the_good_ones(rates, slow):
    lines = [*_together.links(figures(rates), ["a", "b", "c"])]
    wrong = [line.finding for line in lines if not line.finding.ok]
    names = [f"rank {a} ({'abc'[a]}) and rank {b} ({'abc'[b]})" for a, b in slow]
    assert [finding.found.split(":")[0] for finding in wrong] == names
    assert all("ip route get" in finding.remedy for finding in wrong)


def test_ranks_of_one_host_have_no_link_that_could_be_slow():
    """Pairs on one socket are several times faster than those across."""
    rates = {(0, 1): 9e9, (2, 3): 9e9} | {(a, b): 2e9 for a in (0, 1) for b in (2, 3)}
    (line,) = _together.links(figures(rates), ["a"] * 4)
    assert line.finding.ok and "6 pairs of ranks of one host: 16 to 72" in line.finding.found


@pytest.mark.parametrize(
    ("takes", "looks"), [(1e-3, 6), (0.2, 6), (0.21, 5), (0.84, 1), (20.0, 1), (0.0, 6)]
)
def test_a_slow_link_gets_fewer_looks_at_what_is_hidden(takes, looks):
    """At 10 Mbit/s a message takes 0.84 s; twice six looks of four such times exceed the limit."""
    assert _talk._looks_at_progress(takes, 30.0) == looks


def record(**about):
    usual = {
        "machine": "m",
        "host": "h",
        "cores": [0, 1],
        "all_cores": 2,
        "gpus": None,
        "file": None,
    }
    return {**usual, **about}


@pytest.mark.parametrize(
    ("gpus", "ok"),
    [
        ([["a"], ["b"]], True),
        ([["a", "b"], ["a", "b"]], True),  # the session divides them
        ([["a"], ["a"]], False),
        ([["a", "b"], ["b", "c"]], False),
    ],
)
def test_ranks_on_one_gpu(gpus, ok):
    (line,) = _together.gpus({rank: record(gpus=seen) for rank, seen in enumerate(gpus)})
    assert line.finding.ok == ok and bool(line.finding.remedy) != ok and line.ranks == (0, 1)


@pytest.mark.parametrize(
    ("masks", "all_cores", "words"),
    [
        ([[0, 1], [0, 1]], 2, None),
        ([[0], [0]], 2, "oversubscribed: 2 ranks on 1 core"),
        ([[0], [1]], 16, "bound to one core each, of 16"),
        ([[0], [1]], 2, None),
    ],
)
def test_cores_of_a_host(masks, all_cores, words):
    records = {r: record(cores=mask, all_cores=all_cores) for r, mask in enumerate(masks)}
    (line,) = _together.cores(records, "Open MPI")
    assert line.finding.ok == (words is None)
    if words:
        assert words in line.finding.found and "--bind-to core" in line.finding.remedy


@pytest.mark.parametrize(
    ("machines", "ranks_per_node", "words"),
    [
        ("aabb", 2, []),
        ("abab", 1, []),
        ("abbb", 2, ["node 0 lies on hosts a, b"]),
        ("aabc", 2, ["node 1 lies on hosts b, c"]),
        ("aab", 2, ["3 ranks do not form them"]),
        ("a", 4, ["1 rank does not form one"]),
    ],
)
def test_nodes_that_lie_on_several_hosts(machines, ranks_per_node, words):
    records = {rank: record(machine=name, host=name) for rank, name in enumerate(machines)}
    lines = list(_together.nodes(records, len(machines), ranks_per_node))
    assert [line.finding.found for line in lines] == words
    assert not any(line.finding.ok for line in lines)


def test_pairs_without_messages_are_named_once():
    accounts = {0: {"received": [0, 1]}, 1: {"received": [0, 1, 2]}, 2: {"received": [1, 2]}}
    records = {rank: record(host=f"n{rank}") for rank in range(3)}
    (line,) = _together.cut_off(3, records, accounts, 5.0, "MPICH")
    assert line.finding.found == "none between rank 0 (n0) and rank 2 (n2) in 5 s"
    assert "UCX_TCP_PORT_RANGE" in line.finding.remedy
    (line,) = _together.cut_off(2, records, {0: {"received": [0]}}, 5.0, "Open MPI")
    assert "rank 1" in line.finding.found and "btl_tcp_port_min_v4" in line.finding.remedy


def test_folders_that_are_not_shared():
    records = {0: record(file="/x/a"), 1: record(file="/x/b")}
    accounts = {0: {"sees": [0, 1]}, 1: {"sees": [1]}}
    (line,) = _together.checkpoints(records, accounts)
    assert not line.finding.ok and "all hosts share" in line.finding.remedy


def test_requirements_of_an_extra_include_those_it_names():
    assert _software.requirements()["jax"] == "0.10.2"
    assert {"orbax-checkpoint", "flax", "pillow"} <= set(_software.requirements("train"))
    with pytest.raises(ValueError, match="no extra 'trian'; it has .*train"):
        _software.requirements("trian")


@pytest.mark.parametrize(
    ("version", "least", "is_older"),
    [("0.9.9", "0.10.2", True), ("0.10.2", "0.10.2", False), ("1.0rc1", "0.9", False)],
)
def test_versions_compare_by_number(version, least, is_older):
    assert _software.older(version, least) == is_older


def test_a_package_that_is_too_old_says_what_to_install(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1")
    found = _software._package("jax", "0.10.2", "")
    assert not found.ok and "too old" in found.found
    assert found.remedy == 'pip install "jax>=0.10.2".'


def test_a_connection_that_is_awaited_is_found():
    """A server whose queue is full answers nobody."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(address)
            assert _connections.awaited(os.getpid()) == [f"127.0.0.1:{address[1]}"]
        finally:
            for each in waiting:
                each.close()


def test_addresses_that_ucx_names():
    said = "connect(fd=3, src_addr=10.0.0.1:5 dest_addr=10.0.0.3:36479) failed: refused"
    assert _connections.refused(said) == ["10.0.0.3:36479"]


def test_a_part_that_dies_names_its_step():
    notes = '{"begin": "a"}\n{"step": "a", "value": 1}\n{"begin": "b"}\n'
    outcome = _probe._outcome(notes, "the process was killed by SIGSEGV", "some words")
    assert outcome.values == {"a": 1}
    assert outcome.error("b") == "the process was killed by SIGSEGV; last words: some words"
    assert outcome.error("c") == "not reached"


class Undying(subprocess.Popen):
    """A process that waits in the kernel and cannot be killed."""

    pid, returncode = 2**22 + 1, None

    def __init__(self):
        pass

    def __del__(self):
        pass

    def poll(self):
        return None

    def kill(self):
        pass

    def wait(self, timeout=None):
        assert timeout is not None, "a wait without a limit"
        raise subprocess.TimeoutExpired("undying", timeout)


def test_a_part_that_cannot_be_killed_is_left(tmp_path):
    (tmp_path / "notes").touch()
    end, _ = _probe._wait(Undying(), tmp_path / "notes", 0.01)
    assert end == "no answer within 0.01 s"


def test_a_process_without_launcher_keeps_its_settings():
    given = {"PMI_RANK": "1", "PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "UCX_TLS": "tcp"}
    kept = _probe.alone(given)
    assert set(kept) & set(given) == {"UCX_TLS"}


def test_advice_has_its_settings_and_a_failure_its_reason():
    found = _advice.Measured(2, 1e8, 1e-5, 1, 8, 1, "Open MPI")
    row = {"method": "advised", "wire": "int8", "B": 6, "S": 5, "exchange ms": 9.0}
    rows = [{**row, "of no network": 0.99}]
    said = _advice.in_sentences(_advice._chosen(found, rows, 25.6e6, 200.0))
    assert 'sync_every=6, delay=5, wire="int8"' in said and "PE=8 --bind-to core" in said
    assert "too slow" in _advice.in_sentences(_advice._chosen(found, [], 25.6e6, 200.0))
    assert "no module" in _advice.in_sentences({"error": "no module"})


@pytest.mark.parametrize(("ranks_per_node", "nodes_per_host"), [(1, 4), (2, 2), (4, 1)])
def test_the_nodes_of_a_host_share_its_link(ranks_per_node, nodes_per_host, monkeypatch):
    """The ranks of one node each send a part of its bytes."""
    asked = []
    monkeypatch.setattr(
        _advice.subprocess, "run", lambda command, **_: asked.extend(command) or _failed()
    )
    found = _advice.Measured(2, 1e9, 1e-5, 4, 8, 1, "MPICH", ranks_per_node)
    _advice.advice(found, parameters=1e6, step_ms=10.0, limit_seconds=1.0)
    rate = float(asked[asked.index("--rate") + 1].removesuffix("bit"))
    assert rate == pytest.approx(8e9 / _advice._HEADERS / nodes_per_host, rel=1e-6)


@pytest.mark.parametrize("gpus", [True, False])
def test_hosts_without_gpus_pack_and_merge_in_their_own_memory(gpus, monkeypatch):
    asked = []
    monkeypatch.setattr(
        _advice.subprocess, "run", lambda command, **_: asked.extend(command) or _failed()
    )
    found = _advice.Measured(2, 5e5, 1e-5, 1, 8, 1, "MPICH", gpus=gpus)  # a link of 4 Mbit/s
    _advice.advice(found, parameters=1e6, step_ms=10.0, limit_seconds=1.0)
    assert ("--copy-gbytes" in asked) == (not gpus)
    assert asked[asked.index("--rate") + 1] == f"{4e6 / _advice._HEADERS:.0f}bit"


def _failed():
    return subprocess.CompletedProcess([], 1, "", "no")


def test_a_limit_of_nothing_is_refused(capsys):
    assert main(["doctor", "--limit-seconds", "0"]) == 2
    assert "--limit-seconds must be above 0, got 0" in capsys.readouterr().err


def test_cores_are_no_hardware_threads(monkeypatch):
    siblings = {0: "0,64", 64: "0,64", 1: "1,65", 65: "1,65"}
    plain = Path.read_text

    def text(path, *given):
        if path.name == "thread_siblings_list":
            return siblings[int(path.parts[5].removeprefix("cpu"))]
        return plain(path, *given)

    monkeypatch.setattr(Path, "read_text", text)
    assert _machine.physical([0, 64, 1, 65]) == [0, 1]


def test_a_driver_that_does_not_work_is_trouble(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho Driver/library version mismatch\nexit 18\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(gpus, "_DRIVER_DEVICE", tmp_path)
    found = next(x for x in _machine.machine(None) if x.what == "GPUs")
    assert not found.ok and "version mismatch" in found.found and "driver" in found.remedy


def test_the_limits_of_a_job_are_those_of_its_control_group(monkeypatch):
    files = {
        "/proc/self/cgroup": "0::/slurm/job_7",
        "/sys/fs/cgroup/slurm/job_7/memory.max": "max",
        "/sys/fs/cgroup/slurm/memory.max": "3000000000",
        "/sys/fs/cgroup/slurm/job_7/cpuset.cpus.effective": "2-3,8",
        "/proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n",
    }

    def text(path, *given):
        if str(path) in files:
            return files[str(path)]
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", text)
    assert _machine.allowed() == [2, 3, 8]
    (memory,) = _machine._memory()
    assert memory.found == "3 GB"


def test_a_folder_that_was_made_to_try_is_taken_away(tmp_path):
    folder = tmp_path / "a" / "b"
    made = _machine.missing_folders(str(folder))
    finding, path = _machine.write_in(str(folder))
    assert finding.ok and "can be made" in finding.found
    Path(path).unlink()
    _examine._take_away(made)
    assert not (tmp_path / "a").exists() and tmp_path.exists()
    (tmp_path / "file").write_text("")
    finding, _ = _machine.write_in(str(tmp_path / "file"))
    assert not finding.ok and "is a file" in finding.found


@pytest.mark.parametrize("name", ["s3://bucket/run", "gs://bucket", "~nobody_of_this_name", ""])
def test_what_is_no_folder_is_a_finding_and_nothing_is_made(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = PartProgress(values={}, errors={}, died={})
    monkeypatch.setattr(_examine, "try_own", lambda limit_seconds: own)
    monkeypatch.setattr(_examine, "software", lambda *about: [])
    launch = _launcher.LaunchedRank(0, 1, "")
    wishes = _examine.Wishes(1.0, name, (), 1e6, 1.0)
    with contextlib.ExitStack() as stack:
        record, _ = _examine._look(launch, wishes, stack)
    (finding,) = [x for x in record["findings"] if x["what"] == _machine.CHECKPOINTS]
    assert not finding["ok"] and repr(name) in finding["found"] and "Give" in finding["remedy"]
    assert record["file"] is None and not list(tmp_path.iterdir())


def disk_of(free, size):
    return SimpleNamespace(f_bavail=free, f_blocks=size, f_frsize=1)


def test_little_shared_memory_is_not_the_installation(monkeypatch):
    """MPI ends by SIGBUS where it is imported, for it is started there."""
    died = PartProgress({}, {}, {"mpi4py": "the process was killed by SIGBUS"})
    monkeypatch.setattr(_machine.os, "statvfs", lambda path: disk_of(2**30, 2**30))
    (finding,) = _machine.shared_memory()
    assert finding.ok
    assert "Install an MPI library" in remedies(died)["mpi4py"]
    monkeypatch.setattr(_machine.os, "statvfs", lambda path: disk_of(2**19, 2**20))
    (finding,) = _machine.shared_memory()
    assert not finding.ok and "0.5 of 1.0 MB free in /dev/shm" in finding.found
    assert "--shm-size" in finding.remedy
    said = remedies(died)["mpi4py"]
    assert "Not the installation" in said and "Install" not in said
    missing = PartProgress({}, {"mpi4py": "ImportError: libmpi.so"}, {})
    assert "Install an MPI library" in remedies(missing)["mpi4py"]


def remedies(outcome):
    return {finding.what: finding.remedy for finding in _software.software(outcome, (), ())}


def test_shared_memory_is_wanted_for_each_rank_of_the_host(monkeypatch):
    monkeypatch.setattr(_machine.os, "statvfs", lambda path: disk_of(64e6, 64e6))
    monkeypatch.setattr(_machine._environment, "local_ranks", lambda: 2)
    assert [finding.ok for finding in _machine.shared_memory()] == [True]
    monkeypatch.setattr(_machine._environment, "local_ranks", lambda: 8)
    assert [finding.ok for finding in _machine.shared_memory()] == [False]


@pytest.mark.parametrize("home", [None, "", "/no/such/folder", "/proc/1"])
def test_a_missing_home_is_reported_and_no_trouble(monkeypatch, home):
    """A rank reports nothing either: its launcher has started without a home."""
    monkeypatch.setattr(_machine._environment, "launched_ranks", lambda: 2)
    monkeypatch.delenv("HOME")
    if home is not None:
        monkeypatch.setenv("HOME", home)
    finding = _machine._home()
    assert finding.ok
    assert (home or "HOME is not set") in finding.found
    assert _probe.alone({})["HOME"] and _probe.alone({"HOME": "/x"})["HOME"] == "/x"


def test_a_launchers_leftover_variables_are_reported_and_are_no_launch(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_FD", "991")
    monkeypatch.setenv("PMI_RANK", "1")
    assert _launcher.find_launch() == _launcher.LaunchedRank(0, 1, "")
    (finding,) = _launcher.left_behind()
    assert finding.ok and "PMI_SIZE=2 is left" in finding.found
    assert finding.remedy.startswith("unset PMI_SIZE")


@pytest.mark.parametrize(
    ("options", "said", "status"),
    [
        ([], [], 0),
        (["--ranks-per-node", "4"], ["nodes of 4 ranks", "1 rank does not form one", "-n 4"], 1),
        (["--parameters", "1e9"], ["advice", "none: it needs the links", "mpiexec"], 0),
        (["--step-ms", "50"], ["advice", "none: it needs the links", "mpiexec"], 0),
    ],
)
def test_options_that_need_ranks_are_not_ignored_without_them(
    options, said, status, monkeypatch, capsys
):
    looked = record(findings=[]), PartProgress({}, {}, {})
    monkeypatch.setattr(_examine, "_look", lambda *_: looked)
    monkeypatch.setattr(cli_doctor, "find_launch", lambda: _launcher.LaunchedRank(0, 1, ""))
    assert main(["doctor", *options]) == status
    text = capsys.readouterr().out
    assert all(words in text for words in said), text
    assert ("advice" in text) == ("advice" in said)
    assert ("No trouble found" in text) == (status == 0)
