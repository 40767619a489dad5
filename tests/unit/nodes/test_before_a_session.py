"""Ranks that fail, end or finalize MPI before their session."""

import os
import signal
import socket
import subprocess
import sys
import types

import pytest
from network import World
from played import LIMIT_SECONDS

import jdaso
from jdaso._launch import early_failure
from jdaso._mpi import start
from jdaso._mpi.abort import abort_if_started
from jdaso._nodes import exit as _exit

RAISES = "import jdaso; raise ValueError('no data')"


@pytest.fixture
def hook(monkeypatch):
    """Runs the hook of a process that is rank 1 of 2; returns the effects of its end."""
    ends = []
    fresh = dict(watches=False, meets=False, over=False, failed=False)
    monkeypatch.setattr(early_failure, "_state", fresh)
    monkeypatch.setattr(early_failure, "launched_ranks", lambda: 2)
    monkeypatch.setattr(early_failure, "launched_rank", lambda: 1)
    monkeypatch.setattr(early_failure, "speak_out", lambda: None)
    monkeypatch.setattr(early_failure, "_ALIKE_SECONDS", 0.0)
    monkeypatch.setattr(early_failure.atexit, "register", lambda *call: None)
    monkeypatch.setattr(early_failure.signal, "signal", lambda *about: None)
    monkeypatch.setattr(early_failure.os, "kill", lambda _, number: ends.append(number))
    monkeypatch.setattr(sys, "excepthook", lambda *about: None)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    early_failure.watch_rank(abort_if_started)
    return sys.excepthook, ends


def test_a_rank_that_raises_before_its_session_names_itself_and_ends_the_job():
    """A signal ends the process, which every launcher counts as a failure."""
    rank = os.environ | {"PMI_SIZE": "2", "PMI_RANK": "1", "PMI_PORT": "nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", RAISES], env=rank, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGTERM
    assert done.stderr.splitlines()[-1] == (
        f"[rank 1 of 2, host {socket.gethostname()}] This rank failed before it made its Session: "
        "ValueError: no data. The others would wait for it. The job is ended."
    )


FORKS = """
import os, sys, jdaso
if os.fork() == 0:
    raise ValueError("in a worker")
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_worker_that_a_rank_forks_before_its_session_is_no_rank():
    rank = os.environ | {"PMI_SIZE": "2", "PMI_RANK": "1", "PMI_PORT": "nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", FORKS], env=rank, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "in a worker" in done.stderr
    assert "before it made its Session" not in done.stderr


def test_where_mpi_runs_mpi_ends_the_job(hook, monkeypatch):
    raised, ends = hook
    comm = types.SimpleNamespace(Abort=lambda status: ends.append(f"abort {status}"))
    library = types.SimpleNamespace(COMM_WORLD=comm)
    library.Is_initialized, library.Is_finalized = lambda: True, lambda: False
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", library)
    raised(ValueError, ValueError("no data"), None)
    early_failure._end(abort_if_started)
    assert ends[0] == "abort 1"


def test_an_error_of_one_rank_ends_the_job_though_it_is_about_nodes(hook, capsys):
    """The others do not have it: this rank has not met them, since its mpi4py is broken."""
    raised, ends = hook
    raised(jdaso.NodeError, jdaso.NodeError("mpi4py cannot be used"), None)
    early_failure._end(abort_if_started)
    assert ends == [signal.SIGTERM]
    assert "before it made its Session: NodeError: mpi4py cannot be used" in capsys.readouterr().err


def test_ranks_that_start_a_session_meet(hook):
    World(2).run(lambda rank, comm: jdaso.Session(timeout_seconds=LIMIT_SECONDS).close())
    assert early_failure._state["meets"]


@pytest.mark.parametrize(
    "case", ["an error of all", "after a session", "in a forked process", "alone"]
)
def test_a_process_that_is_no_rank_ends_as_any_program(case, hook, capsys, monkeypatch):
    raised, ends = hook
    error = jdaso.NodeError("no") if case == "an error of all" else ValueError("no")
    if case == "an error of all":
        early_failure.note_meeting()
    if case == "after a session":
        early_failure.leave_to_sessions()
    if case == "in a forked process":
        _exit._leave_to_parent()
    if case == "alone":
        monkeypatch.setattr(early_failure, "launched_ranks", lambda: 1)
    raised(type(error), error, None)
    early_failure._end(abort_if_started)
    assert not ends and "before it made its Session" not in capsys.readouterr().err


@pytest.mark.parametrize("how", ["fails", "is stuck", "is late"])
def test_the_error_names_those_that_did_not_come(how):
    """The error names no others: node 2 is late too, but waits when node 0 asks."""
    world = World(4)

    def program(rank, comm):
        if rank == 1 and how == "fails":
            raise ValueError("no data")
        if rank == 1 and how == "is stuck":
            world.clock.forever()
        world.clock.sleep({1: LIMIT_SECONDS + 3.0, 2: 3.0}.get(rank, 0.0))
        jdaso.Session(timeout_seconds=LIMIT_SECONDS)

    outcomes = world.run(program)
    said = [outcomes[node].text.partition("not all nodes came: ")[2] for node in (0, 2, 3)]
    for text in (said[0], said[2]) if how == "is late" else said:
        assert text.startswith("node 1 did not. Check whether")
    assert how != "is late" or said[1].startswith("all answer now. Some were late")
    assert all(outcomes[node].seconds < 3 * LIMIT_SECONDS for node in (0, 2, 3))


def test_mpi_that_was_finalized_before_a_session_is_an_error_of_all():
    world = World(2)
    world.mpi.Is_finalized = lambda: True
    for outcome in world.run(lambda rank, comm: jdaso.Session(timeout_seconds=LIMIT_SECONDS)):
        assert "called MPI.Finalize(), and MPI cannot be started again. Make" in outcome.text
        assert outcome.seconds < 1.0


def test_a_process_alone_whose_mpi_was_finalized_is_one_node(monkeypatch):
    library = types.SimpleNamespace(Is_initialized=lambda: True, Is_finalized=lambda: True)
    monkeypatch.setattr(start, "_initialized", lambda: library)
    monkeypatch.setattr(start, "launched_ranks", lambda: 1)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", library)
    assert start.start_mpi(1.0) is None
    assert start.why_alone() == "the program has ended MPI"
