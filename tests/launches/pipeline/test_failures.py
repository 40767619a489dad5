"""A fit over partitions in which one node fails: an error on every node, in time.

Errors that all nodes raise by themselves are in tests/ranks/pipeline/test_refused.py.
"""

import re
from itertools import product

import pytest
from launcher import PROGRAMS, mpirun
from nights import nightly, rows

SCRIPT = str(PROGRAMS / "pipeline_faulty.py")
LIMIT_SECONDS = 35.0

FEWER = r"^NodeError .*The data of node 1 ended after 4 batches, .* with its batch number [56]"
"""The other replica may have begun the batch after the missing one."""

WRONG_ON_ONE = {
    "shapes": r"(ValueError The plan was made for batches|NodeError .*The plan was made for)",
    "raise": r"(KeyError 'boom'|NodeError .*node 1 .*boom)",
    "evaluation": r"NodeError .*The nodes disagree on the shapes of the batch: node 1 has",
    "stuck": r"NodeError .*(Not arrived: node 1|node 0 on host)",
}


def errors(done):
    """Returns ``{node: (seconds, text)}`` of the nodes that printed an error."""
    found = re.findall(r"^(\d) (\d+\.\d) (\w+ .*)$", done.stdout, re.MULTILINE)
    return {int(node): (float(seconds), text) for node, seconds, text in found}


SHORT = ["short", "short_data", "short_replica", "short_caught", "short_caught_data"]


@pytest.mark.parametrize("case", rows(SHORT, ["short_replica", "short_caught"]))
def test_data_that_ends_early_on_one_node_ends_the_fit_at_once(case):
    nodes = 4 if case == "short_replica" else 2
    done = mpirun(nodes, [SCRIPT, case], quick_compiling=True, timeout=200)
    assert done.returncode != 0
    raised = errors(done)
    assert set(raised) == set(range(nodes)), done.stdout
    for seconds, text in raised.values():
        assert seconds < LIMIT_SECONDS, "nobody waited for the limit of 40 s"
        assert re.search(FEWER, text), done.stdout


@nightly
def test_batches_that_a_restored_fit_passes_over_count(tmp_path):
    for case in ("six", "short_restored"):
        done = mpirun(2, [SCRIPT, case, tmp_path], quick_compiling=True, timeout=200)
        assert (done.returncode == 0) == (case == "six"), done.stdout
    raised = errors(done)
    assert set(raised) == {0, 1}, done.stdout
    for _, text in raised.values():
        assert "The data of node 1 ended after 4 batches" in text, text
        assert "with its batch number 7" in text, text


@pytest.mark.parametrize("case", rows(["nested", "again"], ["again"]))
def test_a_fit_in_a_step_and_one_made_again_end_well(case):
    """Nodes count their loops alike, whatever happened on one of them."""
    done = mpirun(2, [SCRIPT, case], quick_compiling=True, timeout=200)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"^\d end$", done.stdout, re.MULTILINE)) == 2, done.stdout


@pytest.mark.parametrize("case", rows(WRONG_ON_ONE, ["raise", "stuck"]))
def test_all_hear_of_what_is_wrong_on_one(case):
    done = mpirun(2, [SCRIPT, case], quick_compiling=True, timeout=200)
    assert done.returncode != 0
    raised = errors(done)
    # A stuck node reports nothing itself.
    assert set(raised) >= ({0} if case == "stuck" else {0, 1}), done.stdout
    for seconds, text in raised.values():
        assert seconds < LIMIT_SECONDS
        assert re.search(WRONG_ON_ONE[case], text), text


@pytest.mark.parametrize(
    ("case", "mpi"),
    rows(product(["kill", "mid_step"], ["mpich", "openmpi"]), [("mid_step", "mpich")]),
)
def test_a_death_in_mid_pipeline_ends_the_job(case, mpi):
    done = mpirun(2, [SCRIPT, case], mpi=mpi, quick_compiling=True, timeout=200)
    assert done.returncode != 0
    assert not re.search(r"^\d end$", done.stdout, re.MULTILINE), done.stdout


def test_a_pipeline_waits_for_no_replica_longer_than_the_limit():
    done = mpirun(4, [SCRIPT, "stuck_replica"], quick_compiling=True, timeout=200)
    assert done.returncode != 0
    raised = errors(done)
    assert set(raised) >= {0, 1}, done.stdout
    for seconds, text in raised.values():
        assert seconds < LIMIT_SECONDS
        assert re.search(r"NodeError.*\(rank \d\).*did not end within 6 s", text), text


@nightly
def test_no_node_of_a_pipeline_can_be_spared():
    options = {"mpi": "openmpi", "options": ["--with-ft", "ulfm"]}
    done = mpirun(2, [SCRIPT, "shrink"], quick_compiling=True, timeout=200, **options)
    raised = errors(done)
    assert set(raised) == {0, 1}, done.stdout
    for _, text in raised.values():
        assert re.search(r'ValueError on_death="shrink" .* 2 partitions none can be spared', text)


@nightly
def test_auto_takes_the_fewest_partitions_that_fit():
    done = mpirun(2, [SCRIPT, "auto"], quick_compiling=True, timeout=200)
    assert done.returncode == 0, done.stdout
    assert set(re.findall(r"^(\d) K=(\d)$", done.stdout, re.M)) == {("0", "2"), ("1", "2")}


@nightly
def test_without_a_fault_it_ends():
    done = mpirun(2, [SCRIPT, "nothing"], quick_compiling=True, timeout=200)
    assert done.returncode == 0, done.stdout
    assert set(re.findall(r"^(\d) end$", done.stdout, re.MULTILINE)) == {"0", "1"}
