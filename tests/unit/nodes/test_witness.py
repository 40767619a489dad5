"""Whether a silent node's process runs: what its witness says, and what follows for a wait."""

import signal
import socket
import subprocess
import sys
import time

import pytest

from jdaso._launch import witness
from jdaso._launch.witness import Witnesses
from jdaso._mpi.topology import Topology
from jdaso._nodes.detector import Detector
from jdaso._nodes.heartbeat import STARTED
from jdaso._nodes.wait import Wait

PROGRAM = f"""
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("_witness", {witness.__file__!r})
sys.modules["_witness"] = witness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(witness)  # alone: the rest of jdaso takes long to import
witness.start("[rank 0 of 2]", float(sys.argv[1]))
port, token = witness.own_port()
print(port, token, flush=True)
if sys.argv[2] == "started": witness.note_started()
time.sleep(60)
"""


@pytest.fixture
def rank(monkeypatch):
    """A process with a witness, and the witnesses as another node knows them."""
    monkeypatch.setattr(witness, "_ASK_SECONDS", 0.01)
    processes = []

    def start(limit=1000.0, mode="started"):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(limit), mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        port, token = process.stdout.readline().split()
        return process, Witnesses([None, ("localhost", int(port), token)])

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=10)


def until(witnesses, done, seconds=20.0):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, witnesses.describe(1)
        witnesses.ask(1)
        time.sleep(0.02)


def test_a_process_that_runs_is_stopped_or_has_ended(rank):
    process, witnesses = rank()
    assert not witnesses.runs(1) and witnesses.describe(1) == "stopped, dead, or cut off"
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


def test_nothing_is_known_of_a_witness_that_cannot_be_asked(rank):
    """No witness, one of another run at that port, and nobody who has ever answered there."""
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


def test_one_who_asks_and_says_nothing_holds_nobody_up(rank):
    process, witnesses = rank()
    host, port, token = witnesses._addresses[1]
    with socket.create_connection((host, port), 5):
        until(witnesses, lambda: witnesses.runs(1))


def test_a_rank_that_waits_in_mpi_init_says_so_before_it_is_given_up(rank):
    process, witnesses = rank(limit=0.5, mode="starting")
    line = process.stderr.readline()
    assert line.startswith("[rank 0 of 2] MPI_Init has waited") and "have not come" in line


class Known(Witnesses):
    """What is known of node 2, as the test has it."""

    state = "?"

    def ask(self, node):
        assert node == 2

    def runs(self, node):
        return self.state in "RS"

    def has_ended(self, node):
        return self.state == "gone"


@pytest.fixture
def wait():
    """A wait for node 2 of 3, of which nothing has been heard for long."""
    known = Detector(Topology(0, 3, "a", hosts=("a", "b", "c")), None).known
    known.witnesses = Known([None] * 3)
    known.heartbeats.table[:2, STARTED] = 37
    waits = Wait(known, "exchange", "waits for the exchange", call=37, column=STARTED)

    def after(seconds):
        known.heartbeats._heard[2] = known.heartbeats._heard[0] - seconds
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
        assert "It is given up." in after(61)


def test_one_that_has_ended_is_given_up_at_once(wait):
    known, after = wait
    known.witnesses.state = "gone"
    assert "It is given up." in after(7)
    known.left.add(2)  # it has closed its session before
    assert "ended the session" in after(7)


def test_where_mpi_notices_deaths_it_is_left_to_mpi(wait):
    known, after = wait
    known.witnesses.state, known.survives = "gone", True
    assert after(7) is None
