"""Shared by benchmarks: ranks, interleaved timing, tables, a JSON with the machine."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

OUT = Path(os.environ.get("JDASO_BENCHMARK_OUT", "build/benchmarks"))
RESULT = "JDASO_BENCHMARK_RESULT"
LIMIT_SECONDS = 3600.0
"""Longest launch."""


def interleaved(
    functions: Sequence[Callable[[], Any]], repeats: int, before: Callable[[], Any] = lambda: None
) -> list[list[float]]:
    """Seconds of each function, called in turn: A B A B, so that noise hits all alike."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for times, function in zip(seconds, functions, strict=True):
            before()
            begin = time.perf_counter()
            function()
            times.append(time.perf_counter() - begin)
    return seconds


median = statistics.median


def launch(
    script: str,
    arguments: Sequence[Any],
    ranks: int,
    mpiexec: Sequence[str] = (),
    python: str = sys.executable,
) -> Any:
    """Runs a script on ranks and returns what its node 0 gave to `give`.

    `mpiexec` is taken from beside this interpreter; JAX_PLATFORMS is the CPU unless it is set.
    """
    command = list(mpiexec) or [str(Path(sys.executable).parent / "mpiexec"), "-n", str(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        environment = {"JAX_PLATFORMS": "cpu", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **os.environ, RESULT: str(result)}
        environment |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        command += [python, script, *map(str, arguments)]
        run = partial(subprocess.run, check=True, stdin=subprocess.DEVNULL)
        run(command, env=environment, timeout=LIMIT_SECONDS)
        return json.loads(result.read_text())


def is_rank() -> bool:
    """Returns whether this process was started by `launch`."""
    return RESULT in os.environ


def give(value: Any) -> None:
    """Hands a result of node 0 to the process that called `launch`."""
    Path(os.environ[RESULT]).write_text(json.dumps(value))


def report(name: str, rows: list[dict[str, Any]], **settings: Any) -> None:
    """Prints rows as a table and writes them to ``OUT/NAME.json``."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns] + [[_text(row.get(key, "")) for key in columns] for row in rows]
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    about = machine()
    print(
        f"\n{name}: " + ", ".join(f"{key} {value}" for key, value in {**settings, **about}.items())
    )
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {"name": name, "settings": settings, "machine": about, "rows": rows}, indent=1
    )
    (OUT / f"{name}.json").write_text(text + "\n")


def machine() -> dict[str, Any]:
    """Processor, cores, memory, versions and commit; nothing that names a host or a user."""
    import jax
    from mpi4py import MPI

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_GiB": round(memory),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "mpi": " ".join(MPI.Get_library_version().split("\n")[0].split(",")[0].split()),
        "commit": _commit(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    folder = Path(__file__).parents[2]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True).stdout

    try:
        commit = git("rev-parse", "--short", "HEAD").strip() or "unknown"
        return commit + ("+" if git("status", "--porcelain", "--", "jdaso") else "")
    except OSError:
        return "unknown"


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return str(round(value)) if 1000 <= abs(value) < math.inf else f"{value:.3g}"
