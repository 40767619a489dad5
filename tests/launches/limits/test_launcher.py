"""The tests' own launching: every failure is reported in time, and no process stays behind."""

import os
import time

import pytest
from launcher import ROOT, members, mpirun

BOTH = pytest.mark.parametrize("mpi", ["mpich", "openmpi"])

SUITE = """
import time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
def test_good(): assert MPI.COMM_WORLD.allreduce(1) == 2
def test_bad():
    if rank == 1:
        raise ValueError("only here")
    {others}
def test_after(): assert MPI.COMM_WORLD.allreduce(1) == 2
"""


def run_suite(folder, mpi, others):
    """Two ranks of pytest, of which rank 1 fails, in a folder with the conftest of tests/ranks."""
    (folder / "conftest.py").write_text((ROOT / "tests/ranks/conftest.py").read_text())
    (folder / "test_suite.py").write_text(SUITE.format(others=others))
    args = ["-m", "pytest", "--color=no", "-p", "no:cacheprovider", "--rootdir", folder, folder]
    hangs = "barrier" in others
    env = {"JDASO_TEST_DEADLINE": "10" if hangs else "50", "PYTHONPATH": str(ROOT / "tests/lib")}
    return mpirun(2, args, mpi=mpi, cwd=folder, timeout=60, env=env)


@BOTH
def test_a_failure_on_one_rank_is_everyones(mpi, tmp_path):
    done = run_suite(tmp_path, mpi, others="pass")
    assert done.returncode == 1
    assert "ValueError: only here" in done.stdout
    assert done.stdout.count("1 failed, 2 passed") == 1


@BOTH
def test_ranks_left_in_a_collective_end_the_job(mpi, tmp_path):
    done = run_suite(tmp_path, mpi, others="MPI.COMM_WORLD.barrier()")
    assert done.returncode != 0
    assert "ValueError: only here" in done.stdout
    assert "rank 0 is here" in done.stdout and "in test_bad" in done.stdout


@pytest.mark.parametrize(("given", "in_force"), [({}, "128k"), ({"UCX_RNDV_THRESH": "1m"}, "1m")])
@BOTH
def test_ucx_is_told_from_where_on_the_kernel_moves_messages(mpi, given, in_force):
    """MPI starts even with ``mpi4py.rc.initialize = False``."""
    code = (
        "import os, mpi4py, jdaso\nmpi4py.rc.initialize = False\nwith jdaso.Session() as session:"
    )
    code += "print(f'< {os.environ[\"UCX_RNDV_THRESH\"]} > {session.num_nodes} nodes')"
    done = mpirun(2, ["-c", code], mpi=mpi, env=given, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(f"< {in_force} > 2 nodes") == 2, done.stdout


@BOTH
def test_time_is_limited_and_nothing_stays(mpi):
    marker = f"JDASO_TEST_{os.getpid()}"
    begin = time.monotonic()
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True)"
    code += "; time.sleep(120)"
    with pytest.raises(TimeoutError, match="(?s)did not end within 10 s.*up"):
        mpirun(2, ["-c", code], mpi=mpi, timeout=10, env={marker: "1"})
    assert time.monotonic() - begin < 60
    assert not list(members("1", marker))


@BOTH
def test_a_killed_rank_ends_the_job(mpi):
    code = "import os, time; int(os.environ[KEY]) and os.kill(os.getpid(), 9); time.sleep(60)"
    key = {"mpich": "PMI_RANK", "openmpi": "OMPI_COMM_WORLD_RANK"}[mpi]
    done = mpirun(2, ["-c", code.replace("KEY", repr(key))], mpi=mpi, timeout=30)
    assert done.returncode != 0
