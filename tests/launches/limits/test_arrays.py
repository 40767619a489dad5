"""One node's mistake with arrays is an error on every node, which names it, within the limit."""

import re

import pytest
from launcher import PROGRAMS, mpirun
from nights import nightly

SCRIPT = str(PROGRAMS / "arrays_faulty.py")
LIMIT_SECONDS = 10.0
OUT_OF_MEMORY = "Unable to allocate|[Oo]ut of memory"
SAID = {
    "shape": r"node 0 is about to reduce float32 of \(2, 3\) by sum, node 1 .* of \(2, 4\) by sum",
    "operation": r"node 0 is about to reduce .*, node 1 .* gather \(0, 1, 0\) float32 rows",
    "data_set": r"x.h5.* has the data sets b, got 'a'. Name one.",
    "rows": r"mmap length is greater than file size",
    "memory_of_file": OUT_OF_MEMORY,
    "left_out": r"waits to begin to reduce float32.*within 6 s. Not arrived: node 1 .*in left_out",
}
BY_NODE_1 = {"data_set", "rows", "memory_of_file"}


def errors(done, case):
    """Returns ``{node: (seconds, text)}``."""
    found = re.findall(rf"(\d) {case} (\d+\.\d) (\w+ .*)$", done.stdout, re.MULTILINE)
    return {int(node): (float(seconds), text) for node, seconds, text in found}


def check(done, case, words, nodes):
    raised = errors(done, case)
    assert set(raised) == nodes, (case, done.stdout)
    for node, (seconds, text) in raised.items():
        assert seconds < LIMIT_SECONDS
        assert re.search(words, text), text
        assert case not in BY_NODE_1 or node == 1 or "Node 1 could not read" in text, text


def test_every_node_says_what_one_did_wrong(tmp_path):
    """Errors that all nodes raise together leave the session usable for the next mistake."""
    done = mpirun(3, [SCRIPT, tmp_path, "printed", *SAID])
    assert done.returncode != 0
    assert re.findall(r"(\d) printed fine", done.stdout) and "printed 0" not in done.stdout
    for case, words in SAID.items():
        check(done, case, words, {0, 2} if case == "left_out" else {0, 1, 2})


@nightly
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
@pytest.mark.parametrize(
    ("case", "words"), [("raised", r"ValueError: .*shapes|broadcast"), ("memory", OUT_OF_MEMORY)]
)
def test_a_node_that_raises_ends_the_others_waits(tmp_path, mpi, case, words):
    done = mpirun(3, [SCRIPT, tmp_path, case], mpi=mpi)
    assert done.returncode != 0
    check(done, case, words, {0, 1, 2})


@nightly
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_a_killed_node_ends_the_job(tmp_path, mpi):
    done = mpirun(3, [SCRIPT, tmp_path, "killed"], mpi=mpi, timeout=60)
    assert done.returncode != 0
    assert "killed fine" not in done.stdout
