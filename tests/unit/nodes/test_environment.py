"""Processes that are ranks or not, by their environment and other processes of that rank."""

import os
import socket
import subprocess
import sys

import pytest

from jdaso._launch import environment
from jdaso._mpi import start

CLEARED = (*environment.LAUNCHED, *environment.RANKS, environment.RANK, "PMI_FD")


@pytest.fixture
def env(monkeypatch):
    """Sets variables, where no others of a launcher are."""
    for name in list(os.environ):
        if name.startswith(environment._PREFIXES) or name in CLEARED:
            monkeypatch.delenv(name)

    def set_all(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    return set_all


@pytest.fixture
def launcher():
    """The socket to a launcher of PMI, as ranks inherit it."""
    mine, other = socket.socketpair()
    mine.set_inheritable(True)
    with mine, other:
        yield mine


@pytest.fixture
def server():
    """A server of PMIx, by the address that its ranks are given."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"prterun-vm-1@0.0;tcp4://127.0.0.1:{listening.getsockname()[1]}"


def test_launchers_that_are_there_say_how_many_ranks_they_started(env, launcher, server):
    assert environment.launched_ranks() == 1
    env(SLURM_STEP_NUM_TASKS=4, PMIX_RANK=0, SLURM_TASK_PID=os.getpid())  # srun --mpi=pmix
    assert environment.launched_ranks() == 4
    # In a container with process numbers of its own the task has no number.
    env(PMIX_NAMESPACE="a", PMIX_SERVER_URI2=server, SLURM_TASK_PID=2**22 + 1)
    assert environment.launched_ranks() == 4
    env(PMI_SIZE=1, PMI_RANK=0, PMI_FD=launcher.fileno())  # mpiexec -n 1 in a step of srun
    assert environment.launched_ranks() == 1
    env(PMI_SIZE=2, PMI_RANK=1)
    assert (environment.launched_ranks(), environment.launched_rank()) == (2, 1)
    env(OMPI_COMM_WORLD_RANK=0)  # left over from another launcher
    assert environment.launched_rank() == 1
    env(OMPI_COMM_WORLD_SIZE=3, PMIX_NAMESPACE="a", PMIX_SERVER_URI41=server)
    assert environment.launched_ranks() == 3
    assert not environment.left_over()


@pytest.mark.parametrize(
    "values",
    [
        {"PMI_SIZE": 2, "PMI_RANK": 1},
        {"PMI_SIZE": 2, "PMI_FD": 991},
        {"PMI_SIZE": 2, "PMI_FD": 0},  # open, and no socket
        {"PMI_SIZE": "two"},
        {"PMI_SIZE": -2},
        {"OMPI_COMM_WORLD_SIZE": 2},
        {"OMPI_COMM_WORLD_SIZE": 2, "PMIX_NAMESPACE": "a", "PMIX_SERVER_URI2": "a;tcp4://[::]:1"},
        {"SLURM_STEP_NUM_TASKS": 2, "SLURM_TASK_PID": 2**22 + 1},
    ],
)
def test_what_a_launcher_left_behind_makes_no_rank(env, values):
    env(**values)
    assert environment.launched_ranks() == 1
    name = next(name for name in values if name in environment.LAUNCHED)
    assert f"{name}={values[name]} is left in the environment" in start.why_alone()
    before = dict(os.environ)
    with environment.to_start_mpi():
        assert not [name for name in values if name in os.environ]
    assert {**before, **dict(os.environ)} == before  # PMI_FD alone may be gone
    assert set(before) - set(os.environ) <= {"PMI_FD"}


def test_a_socket_of_the_process_itself_is_no_launcher(env, launcher):
    launcher.set_inheritable(False)  # what Python opens; the launcher's was closed before
    env(PMI_SIZE=2, PMI_FD=launcher.fileno())
    assert environment.launched_ranks() == 1


def test_the_environment_of_a_rank_is_left_as_it_is(env, launcher, monkeypatch):
    env(PMI_SIZE=2, PMI_RANK=0, PMI_FD=launcher.fileno())
    monkeypatch.delenv("HOME")
    before = dict(os.environ)
    with environment.to_start_mpi():
        assert os.environ["PMI_FD"] == before["PMI_FD"]
        assert os.environ["HOME"]  # Open MPI does not start without
    assert dict(os.environ) == before


SAY = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("environment", {environment.__file__!r})
e = importlib.util.module_from_spec(spec)
spec.loader.exec_module(e)  # alone: the rest of jdaso takes long to import
print(e.launched_ranks(), e.rank_above())
"""


def said(**settings):
    done = subprocess.run(
        [sys.executable, "-c", SAY], capture_output=True, text=True, timeout=60, **settings
    )
    return done.stdout.strip()


def test_what_a_rank_starts_is_no_rank(env, launcher, server, monkeypatch):
    """Covers inherited and closed descriptors of the launcher, under PMI and PMIx."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    fd = launcher.fileno()
    env(PMI_SIZE=2, PMI_RANK=1, PMI_FD=fd)
    environment.mark_rank(1)
    try:
        assert environment.launched_ranks() == 2 and environment.rank_above() is None
        above = f"1 (1, {os.getpid()})"
        assert said(pass_fds=[fd]) == said() == above
        pair = other, _ = socket.socketpair()  # mpiexec in a rank: a connection of its own
        other.set_inheritable(True)
        with pair[0], pair[1]:
            env(PMI_FD=other.fileno())
            assert said(pass_fds=[other.fileno()]) == "2 None"
        monkeypatch.delenv("PMI_SIZE"), monkeypatch.delenv("PMI_FD")
        env(OMPI_COMM_WORLD_SIZE=2, PMIX_NAMESPACE="a", PMIX_RANK=1, PMIX_SERVER_URI2=server)
        environment.mark_rank(1)
        assert said() == above
        env(PMIX_NAMESPACE="b")  # mpiexec in a rank
        assert said() == "2 None"
    finally:
        os.environ.pop(environment.RANK, None)


def test_mpi_that_takes_a_process_for_its_parent_is_refused(env):
    """A forked process, or one that has imported mpi4py.MPI under Open MPI's launcher."""

    class World:
        size = 2

        def Get_size(self):  # noqa: N802
            return self.size

    class Mpi:
        COMM_WORLD = World()

    start._refuse_part_of(Mpi, None)
    with pytest.raises(start.NodeError, match=r"Rank 1 \(process 77\) started this process"):
        start._refuse_part_of(Mpi, (1, 77))
    World.size = 1
    start._refuse_part_of(Mpi, (1, 77))


@pytest.mark.parametrize("text", ["x", "1 2", "1 b 0 c", ""])
def test_a_mark_that_nobody_can_read_is_none(env, text):
    env(JDASO_RANK=text)
    assert environment.rank_above() is None


def test_ranks_of_several_hosts_are_not_all_here_though_the_job_has_as_many_a_host(monkeypatch):
    """``sbatch --ntasks-per-node=2`` of two hosts, and ``srun -N 2 -n 2`` in it."""
    monkeypatch.setattr(environment, "launched_ranks", lambda: 2)
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "2")
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)
    for hosts, expected in (("1", True), ("2", False)):
        monkeypatch.setenv("SLURM_STEP_NUM_NODES", hosts)
        assert environment.all_on_this_host() == expected
