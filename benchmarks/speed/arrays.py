"""Arrays beside HeAT and dask.array: the same data, threads and ranks, one system at a time.

    python benchmarks/speed/arrays.py [--quick] [--rows 100000 1000000] [--ranks 1 2] [--rounds 5]

All systems hold their data and take turns, round after round; a ratio is the median over rounds of
neighbouring times, and the table shows its spread. Each rank (each worker of dask) has one thread.
The systems that are not in ``.venv-peers`` are left out. dask.array has neither k-means, sort,
distances nor LASSO.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.lib import harness

TASKS = ["mean and std", "histogram", "k-means", "k-means, compiled", "sort", "matmul", "resplit"]
TASKS += ["cdist", "LASSO"]
PEERS = Path(".venv-peers/bin")
PART = Path(__file__).with_name("_arrays.py")
LIMIT_SECONDS = 300.0


def systems() -> list[str]:
    """The systems that can be imported here."""
    found = ["jdaso"]
    for name in ("heat", "dask"):
        command = [PEERS / "python", "-c", f"import {name}"]
        with contextlib.suppress(OSError):
            found += [name] * (subprocess.run(command, capture_output=True).returncode == 0)
    return found


def start(system: str, rows: int, ranks: int, folder: str, turns: list[str]) -> subprocess.Popen:
    bin_folder = Path(sys.executable).parent if system == "jdaso" else PEERS
    several = [] if system == "dask" else [bin_folder / "mpiexec", "-n", ranks]
    command = [*several, bin_folder / "python", PART, system, rows, ranks, folder, *turns]
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    one["NPROC"] = "1"  # XLA's threads, which its flags do not limit in products
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **one}
    return subprocess.Popen(list(map(str, command)), env=environment, start_new_session=True)


def turn(folder: Path, system: str, k: int, ranks: int, times: int) -> float:
    """Lets a system compute; the seconds of its last rank."""
    go = folder / f"go-{system}-{k}"
    go.with_suffix(".part").write_text(str(times))
    os.replace(go.with_suffix(".part"), go)
    files = [folder / f"{system}-{k}-{rank}" for rank in range(1 if system == "dask" else ranks)]
    end = time.monotonic() + LIMIT_SECONDS
    while not all(file.exists() for file in files):
        if time.monotonic() > end:
            raise TimeoutError(f"{system} did not end its turn {k} within {LIMIT_SECONDS:g} s.")
        time.sleep(1e-3)
    return max(float(file.read_text()) for file in files)


def measure(rows: int, ranks: int, rounds: int, chosen: list[str]) -> list[dict]:
    turns = TASKS * (rounds + 1)
    times = {name: {task: [] for task in TASKS} for name in chosen}
    with tempfile.TemporaryDirectory() as folder:
        running = [start(name, rows, ranks, folder, turns) for name in chosen]
        try:
            for k, task in enumerate(turns):
                for name in chosen:
                    often = max(1, min(20, 200_000 // rows)) if k >= len(TASKS) else 1
                    seconds = turn(Path(folder), name, k, ranks, often)
                    if k >= len(TASKS):  # the first ones compile
                        times[name][task].append(seconds)
        finally:
            for process in running:
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    process.wait(10)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return [row(rows, ranks, task, times) for task in TASKS]


def row(rows: int, ranks: int, task: str, times: dict) -> dict:
    own = times["jdaso"][task]
    found = {"ranks": ranks, "rows": rows, "task": task, "jdaso ms": 1e3 * statistics.median(own)}
    for name, of_tasks in times.items():
        other = of_tasks["k-means" if name == "jdaso" or "k-means" in task else task]
        if name != "jdaso" and all(other):
            ratios = sorted(b / a for a, b in zip(own, other, strict=True))
            found[f"{name} / jdaso"] = statistics.median(ratios)
            found[f"{name}: spread"] = f"{ratios[0]:.2f}-{ratios[-1]:.2f}"
    if task == "k-means, compiled":
        eager = times["jdaso"]["k-means"]
        found["of eager"] = statistics.median(a / b for a, b in zip(own, eager, strict=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", nargs="+", default=[])
    given = parser.parse_args()
    if given.quick:
        given.rows, given.ranks, given.rounds, given.without = [10_000], [2], 1, ["heat", "dask"]
    chosen = [name for name in systems() if name not in given.without]
    rows = []
    for ranks in given.ranks:
        for size in given.rows:
            rows += measure(size, ranks, given.rounds, chosen)
    load = f"{os.getloadavg()[0]:.0f}"
    harness.report("arrays", rows, rounds=given.rounds, systems=chosen, load=load)


if __name__ == "__main__":
    main()
