"""A run over partitions goes on with another number of them as if it had never stopped."""

import re

import pytest
from launcher import PROGRAMS, mpirun

SCRIPT = str(PROGRAMS / "pipeline_resumed.py")

# float32: a step's sums over 16 samples and 8 numbers err by some 1e-6 of a gradient of about 1.
OFF = 1e-4


def run(nodes, folder, partitions, steps, model):
    arguments = [SCRIPT, str(folder), str(partitions), str(steps), model]
    done = mpirun(nodes, arguments, quick_compiling=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    made, off = re.search(r"^(\d+) steps, off by (\S+)$", done.stdout, re.MULTILINE).groups()
    return int(made), float(off)


NODES = [(2, 2), (2, 2), (1, 1), (3, 3), (4, 2), (4, 4)]
"""Of run after run: how many nodes, and partitions."""


@pytest.mark.parametrize(
    ("model", "runs"),
    [
        ("listed", NODES),
        ("stacked", NODES),
        ("normed", NODES[1::2]),
        ("hyperparameters", NODES[::3]),
    ],
)
def test_partitions_and_replicas_may_change(tmp_path, model, runs):
    steps = 0
    for nodes, partitions in runs:
        steps += 2
        made, off = run(nodes, tmp_path, partitions, steps, model)
        assert made == 2, f"{partitions} partitions begin at step {steps - made}"
        assert off < OFF


def test_a_folder_of_other_boundaries_is_refused(tmp_path):
    run(2, tmp_path, 2, 1, "listed")
    holding = tmp_path / "partitions-2" / "holding.json"
    holding.write_text(holding.read_text().replace("[0, 1]", "[1, 0]"))
    done = mpirun(2, [SCRIPT, str(tmp_path), "2", "2", "listed"], quick_compiling=True)
    assert done.returncode != 0
    assert "partitions that hold other parameters" in done.stdout


def test_a_state_in_a_tree_of_its_own_is_refused_under_another_number(tmp_path):
    model = "list_momentum"
    run(2, tmp_path, 2, 1, model)
    assert run(2, tmp_path, 2, 2, model)[0] == 1  # under the same it goes on
    done = mpirun(3, [SCRIPT, str(tmp_path), "3", "3", model], quick_compiling=True)
    assert done.returncode != 0
    told = re.findall(r"^\d CheckpointError .* not the same on all.*", done.stdout, re.MULTILINE)
    assert len(told) == 3, done.stdout


def test_all_partitions_hear_of_a_damaged_file_of_one(tmp_path):
    run(2, tmp_path, 2, 1, "listed")
    files = [x for x in (tmp_path / "partitions-2" / "1").rglob("node_0/**/*") if x.is_file()]
    largest = max(files, key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    largest.write_bytes(content)
    done = mpirun(2, [SCRIPT, str(tmp_path), "2", "2", "listed"], quick_compiling=True)
    assert done.returncode != 0
    told = re.findall(r"^\d CheckpointError .*", done.stdout, re.MULTILINE)
    assert len(told) == 2, done.stdout
    assert all("partitions-2/1" in text for text in told)
