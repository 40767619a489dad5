"""Pipelines of every kind train as one process does: pipelined.py on 4 and on 8 nodes."""

import re

import compiling
import pytest
from launcher import PROGRAMS, mpirun
from pipelined import DAY, NIGHT, OPTIMIZED

LIMIT_SECONDS = 900


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize(
    ("when", "nodes"),
    [
        ("day", 4),
        pytest.param("night", 4, marks=pytest.mark.nightly),
        pytest.param("night", 8, marks=pytest.mark.nightly),
        pytest.param("optimized", 4, marks=pytest.mark.nightly),
    ],
)
def test_pipelines_train_as_one_process(when, nodes):
    flags = {"flags": compiling.ALIKE} if when == "optimized" else {"quick_compiling": True}
    done = mpirun(nodes, [PROGRAMS / "pipelined.py", when], timeout=LIMIT_SECONDS, **flags)
    assert done.returncode == 0, done.stdout
    wrong = re.findall("^WRONG: .*", done.stdout, re.M)
    assert not wrong, "\n".join(wrong)
    found = set(re.findall("^ok: (.*): loss ", done.stdout, re.M))
    rounds = {"day": DAY, "night": NIGHT, "optimized": OPTIMIZED}[when][nodes]
    assert found == {str(case) for _, cases in rounds for case in cases}, done.stdout
