"""A run stopped after each of its 60 steps, with each engine and wire, goes on bit for bit."""

import pytest
from launcher import ROOT, mpirun

LIMIT_SECONDS = 1800
RESUMED = "tests/ranks/checkpoint/test_checkpoint.py::test_it_goes_on_as_if_it_had_never_stopped"


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("nodes", [2, 3])
def test_every_step(nodes):
    args = ["-m", "pytest", RESUMED, "--nightly", "--color=no", "-p", "no:cacheprovider"]
    options = dict(quick_compiling=True, timeout=LIMIT_SECONDS, cwd=ROOT)
    done = mpirun(nodes, args, env={"JDASO_TEST_EVERY_STEP": "1"}, **options)
    assert done.returncode == 0, f"\n{done.stdout}"
    assert " passed" in done.stdout, done.stdout
