"""Pipelines of every kind train as one process does: pipelined.py on 4 and on 8 nodes."""

import re

import pytest
from launcher import PROGRAMS, mpirun
from pipelined import DAY, NIGHT

LIMIT_SECONDS = 900


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize(
    ("when", "nodes"),
    [
        ("day", 4),
        pytest.param("night", 4, marks=pytest.mark.nightly),
        pytest.param("night", 8, marks=pytest.mark.nightly),
    ],
)
def test_pipelines_train_as_one_process(when, nodes):
    done = mpirun(
        nodes, [PROGRAMS / "pipelined.py", when], quick_compiling=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stdout
    wrong = re.findall("^WRONG: .*", done.stdout, re.M)
    assert not wrong, "\n".join(wrong)
    found = set(re.findall("^ok: (.*): loss ", done.stdout, re.M))
    rounds = {"day": DAY, "night": NIGHT}[when][nodes]
    assert found == {str(case) for _, cases in rounds for case in cases}, done.stdout
