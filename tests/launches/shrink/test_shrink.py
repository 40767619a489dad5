"""Nodes that fail while the others continue, under Open MPI's ULFM."""

import json
import re

import numpy as np
import pytest
from launcher import PROGRAMS, mpirun
from mortal_problem import reference
from nights import at_night, nightly, rows

SCRIPT = PROGRAMS / "mortal.py"
ULFM = ["--with-ft", "ulfm"]
pytestmark = pytest.mark.mpi


def run(nodes, case, kills, *more, **settings):
    """Returns the nodes that completed the run, with their results, and the output."""
    done = mpirun(
        nodes,
        [SCRIPT, case, kills, *more],
        mpi="openmpi",
        options=ULFM,
        quick_compiling=True,
        **settings,
    )
    found = re.findall(r"^(\d) end (.*)$", done.stdout, re.M)
    return {int(node): json.loads(text) for node, text in found}, done


def survivors(nodes, case, kills, *more):
    """Returns the results of all nodes that were not killed; the job ends well."""
    ends, done = run(nodes, case, kills, *more)
    dead = {int(kill[0]) for kill in kills.split(",") if kill}
    assert sorted(ends) == sorted(set(range(nodes)) - dead), done.stdout
    assert done.returncode == 0, done.stdout
    assert len({end.get("final") for end in ends.values()}) == 1, done.stdout
    for node in dead:
        assert f"node {node} (host " in done.stdout and "The others go on." in done.stdout
    return ends, done.stdout


@pytest.mark.parametrize(
    ("kills", "merge"),
    [
        ("0@2,2@12", "paper"),  # in the warm-up, and cycling with nothing in flight
        at_night(("", "paper")),
        at_night(("1@2", "corrected")),
        at_night(("1@12", "corrected")),
        at_night(("1@12", "paper")),
        at_night(("1@12", "outer")),
        at_night(("0@12", "corrected")),
        at_night(("2@24", "corrected")),  # in the cool-down
    ],
)
def test_every_number_is_that_of_fewer_nodes(kills, merge):
    dead = {int(x[0]): int(x[2:]) for x in kills.split(",") if x}
    ends, output = survivors(3, "numbers", kills, merge)
    right = reference(3, dead, merge)
    living = sorted(ends)
    for node, end in ends.items():
        np.testing.assert_allclose(end["held"], right[node], atol=3e-6, err_msg=output)
        assert end["longest"] < 15.0, output
        assert end["mean"] == pytest.approx(np.mean(living))
        assert end["share"] == [living.index(node), len(living)]
        assert end["living"] == living
        assert end["given"] == living[0]


@pytest.mark.parametrize("wire", rows(["bfloat16", "int8", "int4"], ["int4"]))
def test_narrow_wires(wire):
    ends, _ = survivors(3, "numbers", "1@12", "corrected", wire)
    right = reference(3, {1: 12}, "corrected")
    for node, end in ends.items():
        np.testing.assert_allclose(end["held"], right[node], atol=0.05)


@pytest.mark.parametrize(
    "kills", rows(["1@flight", "0@flight", "1@flight,2@flight", "0@9,3@9"], ["0@flight"])
)
def test_an_exchange_in_flight_is_not_lost(kills):
    """All survivors agree, with or without the failed node's contribution."""
    ends, output = survivors(4, "numbers", kills, "corrected")
    grown = [np.array(end["held"]) for end in ends.values()]
    step = 9 if "@9" in kills else 5
    dead = {int(x[0]) for x in kills.split(",")}
    within, without = (reference(4, dict.fromkeys(dead, at), "corrected") for at in (step, 4))
    first = min(ends)
    low = np.minimum(within[first], without[first]) - 0.4
    high = np.maximum(within[first], without[first]) + 0.4
    assert (low <= grown[0]).all() and (grown[0] <= high).all(), output


@nightly
@pytest.mark.parametrize("step", [3, 5, 9, 20, 21, 22])
def test_whenever_a_node_dies(step):
    """Several chunks, several channels, no pause between steps."""
    survivors(3, "many", f"{step % 3}@{step}")


@nightly
def test_the_last_one_goes_on_alone():
    ends, _ = survivors(3, "numbers", "0@6,1@10", "corrected")
    assert ends[2]["share"] == [0, 1] and ends[2]["mean"] == 2.0


@nightly
@pytest.mark.parametrize("blocking", ["gradients", "parameters"])
def test_synchronous_training_goes_on_too(blocking):
    ends, _ = survivors(3, "synchronous", "0@7", blocking)
    assert {end["count"] for end in ends.values()} == {28}


@nightly
def test_integers_are_kept_without_node_0():
    ends, _ = survivors(3, "counts", "0@10")
    assert {end["count"] for end in ends.values()} == {28}


def test_checkpoints_of_those_who_live(tmp_path):
    """Restores bit for bit on as many nodes as were left, averaged on as many as at first."""
    ends, _ = survivors(3, "saves", "1@13", tmp_path / "a")
    assert {end["first"] for end in ends.values()} == {0}
    for nodes in (2, 3):
        again, output = survivors(nodes, "saves", "", tmp_path / "a")
        assert {end["first"] for end in again.values()} == {28}, output
        assert {end["final"] for end in again.values()} == {ends[0]["final"]}


@nightly
def test_what_was_in_flight_between_fewer_is_dropped(tmp_path):
    """The exchange is dropped as for any other number of nodes, even for as many as were left."""
    survivors(3, "saves", "0@13", tmp_path, "cut")
    again, output = survivors(2, "saves", "", tmp_path)
    assert {end["first"] for end in again.values()} == {16}, output
    assert "what was in flight is dropped" in output


@nightly
@pytest.mark.parametrize("dead", [0, 2])
def test_keys_become_those_of_a_survivor(dead):
    ends, output = survivors(3, "keys", f"{dead}@10")
    assert len({str(end["key"]) for end in ends.values()}) == 1, output


@nightly
@pytest.mark.parametrize(("wire", "kind"), [("bfloat16", "synchronous"), ("int8", "daso")])
def test_what_rounding_takes_is_paid_after_a_death_too(wire, kind):
    """The mean over many steps loses nothing, not even in the failed node's row."""
    whole, _ = survivors(3, "debts", "", wire, kind)
    fewer, output = survivors(3, "debts", "1@5", wire, kind)
    assert np.max(fewer[0]["off"]) < 3 * np.max(whole[0]["off"]), output


@pytest.mark.parametrize("stopped", rows(["0", "2"], ["2"]))
def test_a_smaller_run_stops_where_it_is_told(tmp_path, stopped):
    dead = "1@13" if stopped == "0" else "0@13"
    ends, done = run(3, "saves", dead, tmp_path, stopped)
    assert done.returncode == 75 and not ends, done.stdout
    assert "asked to stop. It is saved at step" in done.stdout
    ends, done = run(2, "saves", "", tmp_path)
    assert {end["first"] for end in ends.values()} <= set(range(20, 29)) and len(ends) == 2


def test_by_default_a_death_ends_the_job_and_is_named():
    ends, done = run(3, "numbers", "1@12", env={"ON_DEATH": "end"}, timeout=60)
    assert done.returncode != 0 and not ends
    assert re.search(
        r"NodeError: \[node [02] of 3, host \S+.*node 1 \(host \S+\) failed", done.stdout
    )


@pytest.mark.nightly
def test_nodes_of_several_ranks_are_refused():
    ends, done = run(4, "numbers", "", env={"RANKS_PER_NODE": "2"}, timeout=60)
    assert done.returncode != 0 and not ends
    text = 'ValueError: on_death="shrink" goes on without a rank that failed, and a node of '
    assert done.stdout.count(f"{text}ranks_per_node=2 cannot.") == 4


@pytest.mark.parametrize(("mpi", "options"), [at_night(("mpich", [])), ("openmpi", [])])
def test_where_mpi_cannot_do_it_all_are_told(mpi, options):
    done = mpirun(2, [SCRIPT, "numbers", ""], mpi=mpi, options=options)
    assert done.returncode != 0
    assert done.stdout.count('ValueError: on_death="shrink" needs Open MPI, and to be') >= 2
