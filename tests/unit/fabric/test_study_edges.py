"""Studies that would measure something else than they name, and advice that would not help."""

import sys

import numpy as np
import pytest
from study_rows import launches_of, row

from jdaso.fabric._study import libraries, verdicts
from jdaso.fabric._study.checks import StudyError
from jdaso.fabric._study.chosen import ChosenLibrary
from jdaso.fabric._study.declaration import read_study
from jdaso.fabric._study.launch import python_of
from jdaso.fabric._study.workloads._collective import arrived, numbers

HEAD = """
name = "x"
replicates = 2
[factors]
fabric = ["loopback"]
library = ["mpich"]
nodes = [2]
"""


def study(tmp_path, text):
    path = tmp_path / "x.toml"
    path.write_text(HEAD + text)
    return read_study(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workload = ['latency']\nbytes = [5]", "no float32 numbers. Give multiples of 4"),
        ("workload = ['latency']\nbytes = [8]\nwire = ['int8']", "none of the workloads latency"),
        (
            "workload = ['training']\nmodel = ['paced']\nmethod = ['daso']\n"
            "[workloads.training]\nsync_every = 4\nfragments = 3",
            "sync_every=4 is no multiple of fragments=3",
        ),
        (
            "workload = ['latency']\nbytes = [8]\n[libraries.mpich]\nenvironment = {'A=B' = 'x'}",
            "has 'A=B', which is no name of a variable",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_any_launch(tmp_path, text, words):
    with pytest.raises(StudyError, match=words):
        study(tmp_path, text)


def test_another_mpi_than_the_name_is_missing():
    name, other = ("mpich", "openmpi")
    found = libraries.find(ChosenLibrary(name=name, transport="mpi"))
    wrong = libraries.find(ChosenLibrary(name=other, transport="mpi"))
    if found.missing:  # this environment has Open MPI
        found, wrong, other = wrong, found, name
    assert found.versions["mpi"] and not found.missing
    assert "Name the interpreter of an environment with" in wrong.missing
    assert f"[libraries.{other}] python" in wrong.missing


def test_a_bare_name_of_an_interpreter_is_looked_up(monkeypatch, tmp_path):
    program = tmp_path / "python9"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert python_of(ChosenLibrary("x", python="python9", transport="mpi")) == str(program)
    assert python_of(ChosenLibrary("x", transport="mpi")) == sys.executable


def test_launches_that_are_not_ok_are_to_be_mended():
    rows = [row("a", k) for k in range(3)]
    rows += [row("b", k, [], status="missing", words="no such MPI") for k in range(3)]
    (found,) = verdicts.verdicts(launches_of(rows))
    assert found.words.startswith("not enough data: launches are missing (mend this, then --again)")
    enough = [row(fabric, k) for fabric in "ab" for k in range(3)]
    assert "mend" not in verdicts.verdicts(launches_of(enough))[0].words


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
@pytest.mark.parametrize("rank", [0, 2])
def test_the_numbers_that_must_arrive(name, rank):
    nodes, count = 3, 12
    given = np.stack([numbers(node, count) for node in range(nodes)])
    part = slice(rank * 4, rank * 4 + 4)
    wanted = {
        "allreduce": given.sum(0),
        "allgather": given.reshape(-1),
        "reduce_scatter": given.sum(0)[part],
        "alltoall": given[:, part].reshape(-1),
    }[name]
    np.testing.assert_array_equal(arrived(name, rank, nodes, count), wanted)
