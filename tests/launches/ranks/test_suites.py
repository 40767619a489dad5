"""Starts tests/ranks under mpiexec: with both MPIs, and at night with up to 4 ranks.

One rank with MPICH runs programs as XLA makes them for users. The others are compiled quickly,
which is also another way to the same numbers; test_users_compiler.py has two ranks as users do.
"""

from itertools import product

import pytest
from launcher import ROOT, mpirun
from nights import rows

LIMIT_SECONDS = 3000
ALL = ("array", "checkpoint", "engines", "exchange", "nodes", "optimizers", "pipeline")
TRANSPORT = ("engines", "nodes", "optimizers/test_reference.py")
"""By day Open MPI runs where it differs from MPICH: below `_mpi` and `_engines`."""


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize(
    ("mpi", "nodes"),
    rows(
        product(["mpich", "openmpi"], [1, 2, 3, 4]),
        day=[("mpich", 1), ("mpich", 2), ("mpich", 3), ("openmpi", 2)],
    ),
)
def test_suite_passes_on_every_rank(mpi, nodes, request):
    night = request.config.option.nightly
    folders = [f"tests/ranks/{name}" for name in (ALL if night or mpi == "mpich" else TRANSPORT)]
    args = ["-m", "pytest", *folders, "--color=no", "-p", "no:cacheprovider"]
    left_out = ["any_mpi"] * (mpi == "openmpi") + ["several"] * (nodes == 1)
    if night:
        args += ["--nightly"]
    else:
        left_out += ["nightly"]
        if mpi == "mpich" and nodes > 1:
            left_out += ["three_nodes" if nodes == 2 else "two_nodes"]
    if left_out:
        args += ["-m", f"not ({' or '.join(left_out)})"]
    quick = mpi == "openmpi" or nodes > 1
    # Shapes do not depend on the MPI, and one node checks all types: that compiles all of jdaso.
    env = {"JDASO_TYPECHECK": "0" if mpi == "openmpi" else "shapes"} if quick else {}
    options = dict(quick_compiling=quick, timeout=LIMIT_SECONDS, env=env, cwd=ROOT)
    done = mpirun(nodes, args, mpi=mpi, **options)
    assert done.returncode == 0, f"\n{done.stdout}"
    assert " passed" in done.stdout, done.stdout
