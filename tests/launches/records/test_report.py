"""A recorded run of two nodes, of which one is killed and which is started again, in a report."""

import json

import pytest
from launcher import PROGRAMS, mpirun

from jdaso.cli import main
from jdaso.report import read_run

PROGRAM = PROGRAMS / "recorded_run.py"


def test_a_killed_and_restarted_run_is_one_run_in_the_report(tmp_path):
    # While it cycles node 0 could go on alone for a while, and save step 18 too.
    drill = {"JDASO_FAULTS": "1@15:kill;0@15:delay=60"}
    first = mpirun(2, [PROGRAM, tmp_path], env=drill, quick_compiling=True)
    assert first.returncode != 0, first.stdout
    second = mpirun(2, [PROGRAM, tmp_path], env=drill, quick_compiling=True)
    assert second.returncode == 0, second.stdout
    written = {node: json.loads((tmp_path / f"seen-{node}.json").read_text()) for node in (0, 1)}

    run = read_run(tmp_path / "run")
    assert [node.node for node in run.nodes] == [0, 1]
    for node in run.nodes:
        mine = written[node.node]
        columns = node.columns
        assert node.starts == 2 and node.ended and node.header["num_nodes"] == 2
        assert columns["step"].tolist() == list(range(1, 25)), "steps 13 to 15 were done twice"
        seen = dict(zip(columns["step"].astype(int).astype(str), columns["loss"], strict=True))
        assert {n: seen[n] for n in mine["losses"]} == pytest.approx(mine["losses"], rel=1e-6)
        assert node.phases == ["warm-up"] * 4 + ["cycling"] * 16 + ["cool-down"] * 4
        assert columns["sync_every"].tolist() == [1] * 4 + [3] * 16 + [1] * 4
        assert columns["bytes_sent"][-1] > mine["bytes_sent"] * 0.9
        assert any(event["name"] == "exchange" for event in node.events)
    checkpoints = [mark.step for mark in run.nodes[0].marks if mark.kind == "checkpoint"]
    assert checkpoints == [6, 12, 18, 24]
    texts = [mark.text for mark in run.nodes[1].marks if mark.kind == "fault"]
    assert texts == ["kill on purpose at 15"]

    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "run"), "-o", str(page)]) == 0
    text = page.read_text()
    assert "kill on purpose at 15" in text and "A cycle: run" in text
    assert f"{run.nodes[1].totals['bytes_sent']:,.0f}" in text
