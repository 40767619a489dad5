"""Every benchmark runs; what it measures is not judged, beside other tests."""

import os
import subprocess
import sys
import uuid

import compiling
import pytest
from _launcher import FOREIGN, ROOT, TAG, end

# These need root and network namespaces: test_cluster.py.
EMULATED = {"links.py", "pipelines.py", "throughput.py", "time_to_accuracy.py"}
BENCHMARKS = sorted({path.name for path in (ROOT / "benchmarks").glob("[a-z]*.py")} - EMULATED)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_prints_a_table(name, tmp_path):
    launch = uuid.uuid4().hex
    environment = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    environment |= {"JDASO_BENCHMARK_OUT": str(tmp_path), "OMP_NUM_THREADS": "1", TAG: launch}
    environment["XLA_FLAGS"] = compiling.QUICKLY
    process = subprocess.Popen(
        [sys.executable, ROOT / "benchmarks" / name, "--quick"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=200)
    finally:
        end(process, launch)
    assert process.returncode == 0, output
    stem = name.removesuffix(".py")
    tables = sorted(tmp_path.glob(f"{stem}*.json"))
    assert tables, output
    for table in tables:
        assert f"\n{table.stem}: " in output
        assert table.stat().st_size > 100
