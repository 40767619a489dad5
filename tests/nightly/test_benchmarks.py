"""Every benchmark runs; what it measures is not judged, beside other tests."""

import json
import subprocess
import sys
import uuid

import compiling
import pytest
from launcher import ROOT, TAG, end, environment_of_a_user

# These need root and network namespaces: test_cluster.py.
EMULATED = {
    *("arrays_at_scale", "fabrics", "links", "pipelines", "shipped", "throughput"),
    "time_to_accuracy",
}
DRY = {"gpu"}  # needs a GPU: test_the_gpus_parts_run_dry
ALL = {
    path.stem: path
    for path in (ROOT / "benchmarks").glob("*/[a-z]*.py")
    if path.parent.name != "lib"
}
BENCHMARKS = sorted(ALL.keys() - EMULATED - DRY)


def run(name, *arguments, out):
    """Exit status and output of a benchmark that writes to a folder; leaves no process behind."""
    launch = uuid.uuid4().hex
    environment = environment_of_a_user()
    environment |= {"JDASO_BENCHMARK_OUT": str(out), "OMP_NUM_THREADS": "1", TAG: launch}
    environment["XLA_FLAGS"] = compiling.QUICKLY
    process = subprocess.Popen(
        [sys.executable, ALL[name], "--quick", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=200)
    finally:
        end(process, launch)
    return process.returncode, output


@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_prints_a_table(name, tmp_path):
    status, output = run(name, out=tmp_path)
    assert status == 0, output
    tables = sorted(tmp_path.glob(f"{name}*.json"))
    assert tables, output
    for table in tables:
        assert f"\n{table.stem}: " in output
        assert table.stat().st_size > 100


def test_the_gpus_parts_run_dry(tmp_path):
    """One with ranks, and one with a compiler; a dry run judges no goal."""
    status, output = run(
        "gpu", "--device", "cpu", "--parts", "mpi4jax", "alternatives", out=tmp_path
    )
    assert status == 0, output
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["dry_run"]
    assert {goal["met"] for goal in record["goals"]} == {"not measured"}
    assert all(row["right"] == "yes" for row in record["parts"]["mpi4jax"]["rows"])
    ways = record["parts"]["alternatives"]["rows"]
    assert not [row for row in ways if "error" in row]
    assert {row["way"] for row in ways} >= {"host_call (jdaso)", "io_callback", "FFI handler"}
    assert "This is a dry run on a CPU." in (tmp_path / "gpu.md").read_text()


def test_a_part_without_its_gpu_fails_and_the_others_go_on(tmp_path, monkeypatch):
    """No device that JAX can use here is called CUDA."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    status, output = run("gpu", "--parts", "mpi4jax", "alternatives", out=tmp_path)
    assert status == 1, output
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert [part["status"] for part in record["parts"].values()] == ["failed", "failed"]
    assert "wrong: mpi4jax: failed" in output
    assert "wrong: alternatives: failed" in output
