"""The tests of tests/mpi, on one to four ranks, with both MPIs."""

import pytest
from _launcher import mpirun


@pytest.mark.mpi
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_suite(ranks, mpi):
    args = ["-m", "pytest", "-p", "no:cacheprovider", "tests/mpi", "--maxfail=5"]
    done = mpirun(ranks, args, mpi=mpi, timeout=280)
    assert done.returncode == 0, done.stdout[-12000:]
    assert done.stdout.count(" passed") == ranks, done.stdout[-12000:]
