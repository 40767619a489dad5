"""jdaso on a GPU: tests, copies, hidden share; one command, one record.

    python benchmarks/gpu/gpu.py [--parts NAME ...] [--quick | --brief] [--minutes M] [--device cpu]

Each part runs in processes of its own with a limit. A failure (a crash, too little memory, a
GPU-aware MPI that is none) is its result, and the others go on. Writes gpu.json and gpu.md to
JDASO_BENCHMARK_OUT and prints the goals. ``--device cpu`` is a dry run: all runs but the handlers
of CUDA, and no goal is judged. Ends with status 1 where a part failed, a result is wrong or a goal
is missed. See docs/gpu.md.
"""

import argparse
import ast
import json
import math
import signal
import sys
from typing import NamedTuple

from benchmarks.gpu._launch import FOLDER, run_script
from benchmarks.gpu._record import judge, markdown, table, wrong_answers
from benchmarks.lib import harness

SHARED = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.45"}  # two processes on one GPU
DEVICES = {
    # With "cpu": JAX's io_callback wants a device of the host.
    "gpu": {"JAX_PLATFORMS": "cuda,cpu", **SHARED},
    # Compiled quickly: how fast it runs does not matter.
    "cpu": {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"},
}


class Part(NamedTuple):
    """One part: ranks that its script is started on, and the most minutes that it may take."""

    ranks: int
    minutes: float


PARTS = {
    "suite": Part(1, 120),
    "sharing": Part(2, 15),
    "start_wait": Part(2, 30),
    "nothing_due": Part(2, 15),
    "hidden": Part(2, 45),
    "alone": Part(2, 20),
    "memory": Part(2, 30),
    "mpi4jax": Part(1, 10),
    "calls": Part(1, 10),
    "alternatives": Part(1, 30),
}


def run(name, options):
    """Returns the result of a part, or how it failed."""
    part, script = PARTS[name], f"_{name}.py"
    outcome = run_script(
        script,
        [
            *("--device", options.device),
            *["--quick"] * options.quick,
            *["--brief"] * options.brief,
        ],
        ranks=part.ranks,
        limit_seconds=60 * min(part.minutes, options.minutes),
        environment=DEVICES[options.device],
    )
    about = _about(name)
    rows = outcome.result or []
    return {
        "about": about,
        "status": outcome.status if rows or outcome.status != "ok" else "failed",
        "seconds": outcome.seconds,
        "rows": rows,
        "why": outcome.why or ("" if rows else "it gave no result"),
    }


def _about(name):
    """The first line of the script's docstring."""
    text = (FOLDER / f"_{name}.py").read_text()
    return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0].partition(": ")[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", choices=DEVICES, default="gpu")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="small sizes, few repeats")
    length.add_argument("--brief", action="store_true", help="full sizes, few repeats")
    parser.add_argument("--minutes", type=float, default=math.inf, help="limit of each part")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the part's ranks end too
    dry_run = options.device == "cpu"
    record = {"name": "gpu", "dry_run": dry_run}
    record |= {"quick": options.quick, "brief": options.brief}
    # Asked in a process of its own: one that has called MPI_Init had better not start ranks.
    asked = run_script("_machine.py", [], ranks=1, limit_seconds=120, environment={})
    record |= {"machine": asked.result or {"unknown": asked.why}, "parts": {}}
    harness.OUT.mkdir(parents=True, exist_ok=True)
    for name in options.parts:
        print(f"{name} ...", flush=True)
        record["parts"][name] = part = run(name, options)
        print(f"{name}: {part['status']} after {part['seconds']:.0f} s", flush=True)
        print("\n".join(table(part["rows"])) if part["rows"] else part["why"], flush=True)
        judged = judge(record["parts"], dry_run=dry_run)
        goals = [
            {**each.goal._asdict(), "measured": each.measured, "met": each.met} for each in judged
        ]
        # After each part: a run that is cut off has written what it had.
        text = json.dumps({**record, "goals": goals}, indent=1)
        (harness.OUT / "gpu.json").write_text(text + "\n")
        (harness.OUT / "gpu.md").write_text(markdown(record, judged))
    print("\ngpu: " + ("dry run on a CPU" if dry_run else record["machine"].get("gpus", "")))
    for each in judged:
        print(f"goal: {each.goal.what}: {each.met}")
    wrong = wrong_answers(record["parts"])
    print("\n".join(f"wrong: {text}" for text in wrong))
    missed = [each for each in judged if each.met == "no"]
    raise SystemExit(1 if wrong or missed else 0)


if __name__ == "__main__":
    main()
