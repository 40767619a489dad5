"""Pipelines of every kind train as one process does: pipelined.py on 4 and on 8 nodes."""

import re

import pytest
from launcher import PROGRAMS, mpirun
from pipelined import ROUNDS

LIMIT_SECONDS = 900


@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("nodes", ROUNDS)
def test_pipelines_train_as_one_process(nodes):
    program = PROGRAMS / "pipelined.py"
    done = mpirun(nodes, [program], quick_compiling=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stdout
    wrong = re.findall("^WRONG: .*", done.stdout, re.M)
    assert not wrong, "\n".join(wrong)
    found = set(re.findall("^ok: (.*): loss ", done.stdout, re.M))
    assert found == {str(case) for _, cases in ROUNDS[nodes] for case in cases}, done.stdout
