"""``python -m jdaso demo`` as a user runs it, on few images."""

import json
import os
import signal
import subprocess
import time

import pytest
from launcher import ENVIRONMENTS, ROOT
from nights import at_night, nightly

from jdaso.report import read_run


def start(*options, mpi="mpich"):
    bin_folder = ENVIRONMENTS[mpi] / "bin"
    return subprocess.Popen(
        [bin_folder / "python", "-m", "jdaso", "demo", *map(str, options)],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*options, mpi="mpich"):
    with start(*options, mpi=mpi) as process:
        try:
            output, _ = process.communicate(timeout=240)
        finally:
            process.terminate()  # which ends its ranks
    return process.returncode, output


@pytest.mark.parametrize(("mpi", "engine"), [("mpich", "mpi4jax"), at_night(("openmpi", "mpi4py"))])
def test_demo_trains_with_both_methods(mpi, engine, tmp_path):
    status, output = run(
        *("--limit", 2560, "--epochs", 2, "--engine", engine, "--json", tmp_path / "out.json"),
        *("--record", tmp_path / "runs"),
        mpi=mpi,
    )
    assert status == 0, output
    assert output.startswith("Images: ")
    for word in ("cycling, B 4, S 2, loss", "test accuracy", "bytes sent per step", "hidden"):
        assert word in output
    daso, synchronous = json.loads((tmp_path / "out.json").read_text())["results"]
    assert daso["method"] == "daso" and synchronous["method"] == "synchronous"
    for result in (daso, synchronous):
        assert result["parameters"] >= 400_000
        assert result["steps"] == 20
        assert result["nodes_equal"] and 0 <= result["hidden_share"] <= 1
        assert result["test_accuracy"] > 0.4
        run_of_method = read_run(tmp_path / "runs" / result["method"])
        assert [node.last("step") for node in run_of_method.nodes] == [20, 20]
        assert run_of_method.nodes[0].last("accuracy") > 0.3
    assert synchronous["hidden_share"] == 0
    assert daso["bytes_per_step"] < synchronous["bytes_per_step"]


def test_a_failing_rank_is_told():
    status, output = run("--limit", 100)
    assert status == 1
    assert "jdaso demo: The ranks ended with status" in output
    assert "100 examples do not fill one batch of 128 on each of 2 nodes" in output


@nightly
def test_a_timeout_is_reported():
    status, output = run("--limit", 2560, "--timeout-seconds", 2)
    assert status == 1
    assert "The ranks did not finish within 2 s and were ended" in output


@nightly
def test_interrupted_it_leaves_nothing_behind():
    with start("--epochs", 50) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "step" in line:
                    break
            ranks = descendants(process.pid)
            assert len(ranks) >= 2
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=30)
        finally:
            process.terminate()
    assert process.returncode == 130
    assert "Interrupted; all ranks were ended." in output
    end = time.monotonic() + 10
    while (left := [pid for pid in ranks if os.path.exists(f"/proc/{pid}/exe")]) and (
        time.monotonic() < end
    ):
        time.sleep(0.2)
    assert not [pid for pid in left if command_of(pid)], "ranks are still running"


def descendants(pid):
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        for task in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{task}/children") as children:
                todo += (new := [int(child) for child in children.read().split()])
            found += new
    return found


def command_of(pid):
    """The command line; empty for a process that has ended and waits to be collected."""
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""
