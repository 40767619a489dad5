"""Makes the ranks agree on the outcome of every test.

``mpiexec -n 3 python -m pytest tests/ranks`` is three pytests that run the same tests. After each
phase of a test they exchange outcomes. A test that failed on one rank fails on all, so all continue
with the same next test; rank 0 prints the reports of all, the others print nothing.

A rank may fail while the others wait for it in a collective. The rank would then wait for their
outcome for ever: after a deadline it shows where they hang and ends the job.
"""

import faulthandler
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import compiled_once
import pytest
from mpi4py import MPI

WORLD = MPI.COMM_WORLD.Dup()
RANK, PEERS = WORLD.rank, [rank for rank in range(WORLD.size) if rank != WORLD.rank]
DEADLINE_SECONDS = float(os.environ.get("JDASO_TEST_DEADLINE", "60"))
REPORT_CHARACTERS = 20_000

collect_errors = []
stderr = 2
pids = WORLD.allgather(os.getpid())


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    global stderr
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        stderr = os.dup(2)
    faulthandler.register(signal.SIGUSR1, file=stderr)
    if RANK != 0:
        config.pluginmanager.unregister(name="terminalreporter")
    if WORLD.size > 1:  # one rank compiles as users do
        compiled_once.share(WORLD.bcast(os.environ.get(compiled_once.FOLDER)))


def pytest_collection_modifyitems(config, items):
    for item in items:
        if WORLD.size == 1 and item.get_closest_marker("several"):
            reason = "needs two nodes: mpiexec -n 2 python -m pytest tests/ranks"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collectreport(report):
    if report.failed:
        collect_errors.append(report.longreprtext)


def pytest_collection_finish(session):
    tests = [item.nodeid for item in session.items]
    everyone = agree("the collection of tests", (tests, collect_errors))
    for rank, (theirs, errors) in everyone.items():
        if errors or theirs != tests:
            text = "".join(errors) or f"it found {len(theirs)} tests, rank {RANK} {len(tests)}"
            pytest.exit(f"collecting tests failed on rank {rank}: {text}", returncode=3)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    where = f"{item.nodeid} ({report.when})"
    everyone = agree(where, (where, report.outcome, report.longreprtext[-REPORT_CHARACTERS:]))
    if len({outcome[:2] for outcome in everyone.values()}) > 1 or report.failed:
        report.outcome = "failed"
        report.longrepr = "\n".join(
            f"--- rank {rank}: {theirs}, {outcome}\n{text}"
            for rank, (theirs, outcome, text) in sorted(everyone.items())
        )
    return report


def agree(what, mine):
    """Returns the values of all ranks, by rank; ends the job if a rank sends nothing."""
    sent = [WORLD.isend(mine, rank) for rank in PEERS]
    everyone = {RANK: mine}
    end = time.monotonic() + DEADLINE_SECONDS
    while silent := [rank for rank in PEERS if rank not in everyone]:
        for rank in silent:
            if WORLD.iprobe(source=rank):
                everyone[rank] = WORLD.recv(source=rank)
        if time.monotonic() > end:
            give_up(what, mine, silent)
        time.sleep(0.001)
    MPI.Request.waitall(sent)
    return everyone


def give_up(what, mine, silent):
    """Prints this rank's outcome, lets the silent ranks show their stacks, and ends the job."""
    text = (
        f"\nrank {RANK} waited {DEADLINE_SECONDS:g} s after {what} for ranks {silent}; it says:\n"
    )
    os.write(stderr, (text + "\n".join(map(str, mine)) + "\n").encode())
    for rank in silent:
        os.write(stderr, f"\nrank {rank} is here:\n".encode())
        os.kill(pids[rank], signal.SIGUSR1)
        time.sleep(5.0)  # of which the launcher passes on their stacks
    WORLD.Abort(1)


@pytest.fixture
def folder():
    """A folder that all ranks share, and that is removed after the test."""
    name = WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None)
    yield Path(name)
    WORLD.Barrier()
    if RANK == 0:
        shutil.rmtree(name)
