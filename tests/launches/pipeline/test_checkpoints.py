"""A run over partitions goes on with another number of them as if it had never stopped.

`pipeline_resumed.py` makes run after run in one launch, each in a session of as many ranks as it
says, and damages files in between.
"""

import re

import pytest
from launcher import PROGRAMS, mpirun

# float32: a step's sums over 16 samples and 8 numbers err by some 1e-6 of a gradient of about 1.
OFF = 1e-4

NODES = [(2, 2), (2, 2), (1, 1), (3, 3), (4, 2), (4, 4)]
"""Pairs of one run and the next: the number of nodes, and of partitions."""


def resumed(folder, *do, nodes=4):
    words = [PROGRAMS / "pipeline_resumed.py", folder, *do]
    done = mpirun(nodes, words, quick_compiling=True, timeout=250)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("model", "runs"),
    [
        ("listed", [(2, 2), (1, 1), (3, 3), (4, 2)]),
        pytest.param("listed", NODES, marks=pytest.mark.nightly),
        pytest.param("stacked", NODES, marks=pytest.mark.nightly),
        ("normed", [(2, 2), (3, 3)]),
        pytest.param("normed", NODES[1::2], marks=pytest.mark.nightly),
        pytest.param("hyperparameters", NODES[::3], marks=pytest.mark.nightly),
    ],
)
def test_partitions_and_replicas_may_change(tmp_path, model, runs):
    output = resumed(tmp_path, *(f"{model}:{nodes}:{parts}" for nodes, parts in runs))
    found = re.findall(rf"^{model} (\d) (\d): (\d) steps, off (\S+)$", output, re.MULTILINE)
    assert [(int(n), int(k)) for n, k, *_ in found] == runs, output
    for *_, steps, off in found:
        assert int(steps) == 2 and float(off) < OFF, output


def test_files_that_cannot_be_gone_on_from_are_refused_on_all_nodes(tmp_path):
    """Other boundaries, a damaged file of one partition, a state in a tree of its own."""
    output = resumed(
        tmp_path,
        *("listed:2:2:1", "listed:swap_boundaries", "listed:2:2:1"),
        *("hyperparameters:2:2:1", "hyperparameters:damage", "hyperparameters:2:2:1"),
        *("list_momentum:2:2:1", "list_momentum:2:2:1", "list_momentum:3:3:1"),
    )
    assert errors(output, "listed") == {"0", "1"}, output
    assert "partitions that hold other parameters" in output
    damaged = re.findall("hyperparameters node . CheckpointError .*", output)
    assert len(damaged) == 2 and all("partitions-2/1" in text for text in damaged), output
    assert output.count("list_momentum 2 2: 1 steps") == 2, "under the same number it goes on"
    assert errors(output, "list_momentum") == {"0", "1", "2"}, output
    assert output.count("not the same on all") >= 3, output


def errors(output, model):
    """The nodes that printed an error."""
    return set(re.findall(rf"^{model} node (\d) CheckpointError ", output, re.MULTILINE))
