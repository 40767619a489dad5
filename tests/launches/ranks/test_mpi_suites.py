"""Starts tests/ranks under mpiexec: 1, 2, 3 and 4 ranks with both MPIs.

One rank with MPICH runs programs as XLA makes them for users. The others are compiled quickly,
which is also another way to the same numbers; test_users_compiler.py has two ranks as users do.
"""

import pytest
from launcher import ROOT, mpirun

LIMIT_SECONDS = 900


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_suite_passes_on_every_rank(mpi, nodes):
    args = ["-m", "pytest", "tests/ranks", "--color=no", "-p", "no:cacheprovider"]
    left_out = ["any_mpi"] * (mpi == "openmpi") + ["several"] * (nodes == 1)
    left_out += ["few_nodes"] * (nodes in (1, 4) or (nodes, mpi) == (3, "mpich"))
    if left_out:
        args += ["-m", f"not ({' or '.join(left_out)})"]
    quick = mpi == "openmpi" or nodes > 1
    env = {"JDASO_TYPECHECK": "0"} if mpi == "openmpi" else {}  # shapes do not depend on it
    options = dict(quick_compiling=quick, timeout=LIMIT_SECONDS, env=env, cwd=ROOT)
    done = mpirun(nodes, args, mpi=mpi, **options)
    assert done.returncode == 0, f"\n{done.stdout}"
    assert " passed" in done.stdout, done.stdout
