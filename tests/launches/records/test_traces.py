"""Traces of two nodes of two devices each."""

import re

import pytest
import traces_checked
from launcher import PROGRAMS, mpirun

from jdaso.traces import merge, read

SCRIPT = PROGRAMS / "traced.py"
DEVICES = ("device 0", "device 1")


def test_every_node_and_device_is_on_one_clock(tmp_path):
    done = mpirun(2, [SCRIPT, tmp_path], devices=2, quick_compiling=True)
    assert done.returncode == 0 and done.stdout.count("the same bits") == 2, done.stdout
    trace = read(tmp_path)
    assert [node.node for node in trace.nodes] == [0, 1] and not trace.missing
    traces_checked.are_chromes(merge(trace))
    said = dict(re.findall(r"node (\d): hidden ([\d.]+)", done.stdout))
    for node in trace.nodes:
        assert node.closed and node.bound_seconds < 0.05
        assert node.hidden_share == pytest.approx(float(said[str(node.node)]), abs=1e-5)
        of = {name: [e for e in node.events if e.name == name] for name in NAMES}
        for name in ("compute", "pack", "merge", "wait", "copy"):
            assert {e.lane for e in of[name] if e.lane != "steps"} >= set(DEVICES), name
        assert [e.step for e in of["exchange"]] == [2, 6, 10]
        assert sorted({e.step for e in of["pack"]}) == [2, 6, 10]
        assert sorted({e.step for e in of["merge"]}) == [4, 8, 12]
        assert {e.step for e in of["mean"] if e.lane == "device 0"} >= {0, 1, 12, 13, 14, 15}
        assert {e.lane for e in of["checkpoint"]} == {"steps", "checkpoint"}
        for exchange in of["exchange"]:
            chunks = [e for e in of["chunk"] if e.of == exchange.of]
            assert sorted(e.chunk for e in chunks) == list(range(len(chunks))) and len(chunks) > 3
            assert sum(e.size_bytes for e in chunks) == exchange.size_bytes
    # Neither node can have the result before the other has begun.
    for zero, one in zip(*(exchanges(node) for node in trace.nodes), strict=True):
        assert zero.of == one.of
        slack = trace.nodes[1].bound_seconds
        assert max(zero.begin_seconds, one.begin_seconds) <= (
            min(zero.end_seconds, one.end_seconds) + slack
        )


NAMES = ("step", "compute", "pack", "copy", "exchange", "chunk", "wait", "merge", "mean")
NAMES += ("checkpoint",)


def exchanges(node):
    return [event for event in node.events if event.name == "exchange"]


def test_what_a_killed_node_did_can_be_read(tmp_path):
    done = mpirun(2, [SCRIPT, tmp_path, "kill"], devices=2, quick_compiling=True)
    assert done.returncode != 0
    killed = read(tmp_path).nodes[1]
    assert killed.node == 1 and not killed.closed
    assert [e.step for e in killed.events if e.name == "step"] == list(range(10))
    assert [e.step for e in exchanges(killed)] == [2, 6]
