"""A run over partitions goes on with another number of them as if it had never stopped."""

import re
from pathlib import Path

import pytest
from _launcher import mpirun

SCRIPT = str(Path(__file__).with_name("pipeline_resumed.py"))

# float32: a step's sums over 16 samples and 8 numbers err by some 1e-6 of a gradient of about 1.
OFF = 1e-4


def run(nodes, folder, partitions, steps, model):
    arguments = [SCRIPT, folder, str(partitions), str(steps), model]
    done = mpirun(nodes, arguments, quick_compiling=True, timeout=120)
    assert done.returncode == 0, done.stdout
    made, off = re.search(r"^(\d+) steps, off by (\S+)$", done.stdout, re.MULTILINE).groups()
    return int(made), float(off)


@pytest.mark.parametrize("model", ["listed", "stacked"])
def test_partitions_and_replicas_may_change(tmp_path, model):
    folder = str(tmp_path)
    steps = 0
    for nodes, partitions in [(2, 2), (2, 2), (1, 1), (3, 3), (4, 2), (4, 4)]:
        steps += 2
        made, off = run(nodes, folder, partitions, steps, model)
        assert made == 2, f"{partitions} partitions begin at step {steps - made}"
        assert off < OFF


def test_a_folder_of_other_boundaries_is_refused(tmp_path):
    run(2, str(tmp_path), 2, 1, "listed")
    holding = tmp_path / "partitions-2" / "holding.json"
    holding.write_text(holding.read_text().replace("[0, 1]", "[1, 0]"))
    done = mpirun(2, [SCRIPT, str(tmp_path), "2", "2", "listed"], quick_compiling=True)
    assert done.returncode != 0
    assert "partitions that hold other parameters" in done.stdout
