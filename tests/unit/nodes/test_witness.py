"""A silent node's process runs or not: its witness's answer, and its effect on a wait."""

import contextlib
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from jdaso._launch import witness as _witness
from jdaso._launch import witness_process as _witness_process
from jdaso._launch.witness import Witnesses
from jdaso._mpi.topology import Topology
from jdaso._nodes.detector import Detector
from jdaso._nodes.heartbeat import STARTED
from jdaso._nodes.wait import Wait

PROGRAM = f"""
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("_witness", {_witness.__file__!r})
sys.modules["_witness"] = _witness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(_witness)  # alone: the rest of jdaso takes long to import
one_host = sys.argv[2] == "on one host"
limit = float(sys.argv[1])
if sys.argv[2] == "MPI runs": _witness._WARN_SECONDS, limit = limit, None
_witness.start("[rank 0 of 2]", limit, one_host=one_host)
port, token = _witness.own_port() or ("none", "none")
print(port, token, flush=True)
if sys.argv[2] in ("started", "on one host"): _witness.note_started()
time.sleep(60)
"""

LAUNCHER = f"""
import ctypes, os, subprocess, sys, time
name = sys.argv[1].encode()
ctypes.CDLL(None).prctl(15, name)  # PR_SET_NAME
ranks = []
for rank in (0, 1):
    about = dict(zip(sys.argv[2:5], ("2", sys.argv[5], str(rank))))
    code = "import time; time.sleep(0.5)" if rank else {PROGRAM!r}
    words = [sys.executable, "-c", code, "1000", "starting"]
    ranks.append(subprocess.Popen(words, env=os.environ | about, stdout=subprocess.DEVNULL))
print("status", ranks[0].wait(), flush=True)
"""
"""Starts two ranks as a launcher does, under its name; rank 1 ends at once, rank 0 waits for it."""


@pytest.fixture
def rank(monkeypatch):
    """A process with a witness, and the witnesses as seen by another node."""
    monkeypatch.setattr(_witness, "_ASK_SECONDS", 0.01)
    processes = []

    def start(limit=1000.0, mode="started", **variables):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(limit), mode],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        port, token = process.stdout.readline().split()
        known = None if port == "none" else ("localhost", int(port), token)
        return process, Witnesses([None, known])

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=10)


def test_a_rank_with_many_open_files_has_a_witness():
    """`select` takes no descriptor above 1023."""
    many = "import os, resource\n"
    many += "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
    many += "resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))\n"
    many += "kept = [os.open(os.devnull, 0) for _ in range(1100)]\n"
    with subprocess.Popen(
        [sys.executable, "-c", many + PROGRAM, "1000", "started"], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().split()[0].isdigit()
        finally:
            process.kill()


def until(witnesses, done, seconds=20.0):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, witnesses.describe(1)
        witnesses.ask(1)
        time.sleep(0.02)


def test_a_process_that_runs_is_stopped_or_has_ended(rank):
    process, witnesses = rank()
    assert not witnesses.runs(1) and witnesses.describe(1) == "stopped, failed, or unreachable"
    until(witnesses, lambda: witnesses.runs(1))
    assert "waits, but C code holds Python's lock" in witnesses.describe(1)
    process.send_signal(signal.SIGSTOP)
    until(witnesses, lambda: not witnesses.runs(1))
    assert "its process is stopped (SIGSTOP" in witnesses.describe(1)
    process.send_signal(signal.SIGCONT)
    until(witnesses, lambda: witnesses.runs(1))
    process.kill()
    until(witnesses, lambda: witnesses.has_ended(1))
    assert "its process has ended" in witnesses.describe(1)


def test_signals_for_the_rank_do_not_end_its_witness(rank):
    """Managers may send them to all processes of a job, and the rank handles them and goes on."""
    process, witnesses = rank()
    until(witnesses, lambda: witnesses.runs(1))
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    with open(children) as file:
        (witness,) = map(int, file.read().split())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(witness, number)
    time.sleep(0.2)
    with open(f"/proc/{witness}/stat") as file:
        assert file.read().rpartition(")")[2].split()[0] not in "ZX"
    until(witnesses, lambda: witnesses.runs(1))


def test_nothing_is_known_of_a_witness_that_cannot_be_asked(rank):
    """No witness, one of another run at that port, and none that has ever answered there."""
    process, witnesses = rank()
    host, port, _ = witnesses._addresses[1]
    for address in (None, (host, port, "another"), (host, 1, "token")):
        unknown = Witnesses([None, address])
        for _ in range(4):
            unknown.ask(1)
            end = time.monotonic() + 10
            while unknown._under_way and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.02)
        assert not unknown.runs(1) and not unknown.has_ended(1)


def test_strangers_hold_nobody_up_and_learn_a_letter_and_a_number(rank):
    """One client is silent, one sends data that nobody reads, one resets, one asks a question."""
    process, witnesses = rank()
    host, port, token = witnesses._addresses[1]
    with socket.create_connection((host, port), 5), socket.create_connection((host, port), 5) as b:
        with contextlib.suppress(OSError):
            b.sendall(b"x" * 1_000_000)
        with socket.create_connection((host, port), 5) as reset:
            linger = struct.pack("ii", 1, 0)
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        until(witnesses, lambda: witnesses.runs(1))
    with socket.create_connection((host, port), 5) as curious:
        curious.settimeout(5)
        curious.sendall(b"GET / HTTP/1.0\r\n\r\n")
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := curious.recv(1000):
                said += piece
    assert re.fullmatch(rf"({token} \w \d+\.\d\d\n)?", said.decode())
    assert process.poll() is None


def test_where_all_ranks_are_on_one_host_no_other_can_connect(rank):
    _, witnesses = rank(mode="on one host")
    until(witnesses, lambda: witnesses.runs(1))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", witnesses._addresses[1][1]), 5)


def test_witnesses_can_be_switched_off(rank):
    process, witnesses = rank(JDASO_WITNESS="off")
    assert witnesses._addresses == [None, None] and process.poll() is None


def test_one_that_is_started_after_mpi_does_not_speak_of_its_start(rank):
    process, _ = rank(limit=0.1, mode="MPI runs")
    assert not select.select([process.stderr], [], [], 1.0)[0]


@pytest.mark.parametrize(
    ("launcher", "variables"),
    [
        ("hydra_pmi_proxy", ("MPI_LOCALNRANKS", "PMI_SIZE", "PMI_RANK")),
        ("prted", [f"OMPI_COMM_WORLD_{x}" for x in ("LOCAL_SIZE", "SIZE", "RANK")]),
    ],
)
def test_a_rank_that_waits_in_mpi_init_for_one_that_has_ended_is_ended(launcher, variables):
    """The report names the rank that ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, launcher, *variables, "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=30)
        assert out == "status -9\n"
        begin = "[rank 0 of 2] MPI_Init cannot return: it waits for rank 1, which ended before"
        assert err.startswith(begin)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)


def test_ranks_of_several_hosts_that_have_ended_are_counted(monkeypatch):
    """Ranks of other hosts are not visible, so their numbers are unknown."""
    for name, value in {"MPI_LOCALNRANKS": "3", "PMI_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert _witness_process.ended_ranks(os.getpid()) == ""  # no launcher that is known
    monkeypatch.setattr(_witness_process, "_launcher", lambda _: (os.getpid(), "hydra_pmi_proxy"))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE):
        assert _witness_process.ended_ranks(os.getpid()) == "2 of the 3 ranks of this host"
        monkeypatch.setenv("MPI_LOCALNRANKS", "1")
        assert _witness_process.ended_ranks(os.getpid()) == ""


def test_a_rank_that_waits_in_mpi_init_says_so_before_it_is_given_up(rank):
    process, witnesses = rank(limit=0.5, mode="starting")
    line = process.stderr.readline()
    assert line.startswith("[rank 0 of 2] MPI_Init has waited") and "have not arrived" in line


class Known(Witnesses):
    """The witness's state of node 2, set by the test."""

    state = "?"

    def ask(self, node):
        assert node == 2

    def runs(self, node):
        return self.state in "RS"

    def has_ended(self, node):
        return self.state == "gone"


@pytest.fixture
def wait():
    """A wait for node 2 of 3, which has been silent for long."""
    known = Detector(Topology(0, 3, "a", hosts=("a", "b", "c")), None).known
    known.witnesses = Known([None] * 3)
    known.heartbeats.table[:2, STARTED] = 37
    waits = Wait(known, "exchange", "waits for the exchange", call=37, column=STARTED)

    def after(seconds):
        known.heartbeats._news_at[2] = known.heartbeats._news_at[0] - seconds
        waits.waited_seconds = seconds
        return waits.why_no_longer()

    return known, after


def test_a_silent_node_whose_process_runs_is_waited_for_as_one_that_is_alive(wait):
    known, after = wait
    known.witnesses.state = "S"
    assert after(80) is None and after(590) is None
    assert "did not end within 600 s" in (after(610), after(611))[1]


def test_one_that_is_stopped_or_unknown_is_given_up_as_before(wait):
    known, after = wait
    for known.witnesses.state in ("T", "?"):
        assert after(50) is None
        assert "The wait is given up." in after(61)


def test_one_that_has_ended_is_given_up_at_once(wait):
    known, after = wait
    known.witnesses.state = "gone"
    assert "The wait is given up." in after(7)
    known.left.add(2)  # it has closed its session before
    assert "ended the session" in after(7)


def test_where_mpi_notices_deaths_it_is_left_to_mpi(wait):
    known, after = wait
    known.witnesses.state, known.survives = "gone", True
    assert after(7) is None
