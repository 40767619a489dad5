"""What ``make bench`` runs: all that `docs/benchmarks.md` shows, and the page. An hour is meant."""

import subprocess
import sys
import time
from pathlib import Path

import _page
import _report
from _marks import JDASO, SYNCHRONOUS

HERE = Path(__file__).parent
LIMITS = ["bare", "instant"]
WIRES = [JDASO, "daso float32 corrected", "daso int8 corrected"]
MERGES = ["daso bfloat16 paper", "daso bfloat16 outer"]
PEERS = [*SYNCHRONOUS, "torch post-local sgd"]
SHORT = ["--rounds", "1", "--cycles", "2", "--warm", "2"]

RUNS = {
    "key": [  # each in its own processes: memory is shown, and all at once would not fit
        *("throughput.py", "--apart", "--rounds", "1", "--methods"),
        *(*LIMITS, *WIRES, *MERGES, *PEERS),
    ],
    "mpi4jax": [
        *("throughput.py", *SHORT, "--engine", "mpi4jax", "--methods"),
        *(*LIMITS, JDASO, "synchronous"),
    ],
    "rare": ["throughput.py", *SHORT, "--sync-every", "8", "--methods", *LIMITS, JDASO],
    "grid": [
        *("throughput.py", *SHORT, "--hosts", "2", "4", "--gigabits", "1", "2.5", "10"),
        *("--step-ms", "100", "200", "400", "--methods", *LIMITS, JDASO, "synchronous"),
    ],
    "eight": [  # each method in its own processes: together they would not fit into 24 GiB
        *("throughput.py", *SHORT, "--apart", "--hosts", "8", "--gigabits", "1", "2.5", "10"),
        *("--step-ms", "200", "400", "--methods", *LIMITS, JDASO, "synchronous"),
    ],
    "large": [
        *("throughput.py", *SHORT, "--apart", "--hosts", "2", "--gigabits", "1", "10"),
        *("--parameters", "124e6", "138e6", "--methods", *LIMITS, JDASO),
    ],
    "links": ["links.py", "--hosts", "4", "8", "--gigabits", "1"],
    "demo": [
        *("throughput.py", "--compute", "demo", "--gigabits", "0.1", "1", "--rounds", "1"),
        *("--cycles", "5", "--methods", *LIMITS, JDASO, *PEERS[:2]),
    ],
    "text": [
        *("throughput.py", "--compute", "text", "--gigabits", "0.1", "1", "--rounds", "1"),
        *("--cycles", "5", "--methods", *LIMITS, JDASO, *PEERS[:2]),
    ],
    "time_to_accuracy": ["time_to_accuracy.py"],
    "accuracy": [
        *("accuracy.py", "--tasks", "fashion", "fashion-adamw", "--simulated"),
        *("--settings", "synchronous", "default", "paper"),
    ],
    "accuracy_text": [
        *("accuracy.py", "--tasks", "text", "--nodes", "4", "--simulated"),
        *("--settings", "synchronous", "default"),
    ],
    "many_nodes": [
        *("accuracy.py", "--tasks", "fashion-adamw", "--nodes", "--simulated", "64"),
        *("--seeds", "1", "--settings", "synchronous", "default", "paper", "near"),
    ],
    "packing": ["packing.py"],
}


def main(names):
    """Runs those that are named, or all; one that fails is left out of the page."""
    unknown, failed = [name for name in names if name not in RUNS], []
    if unknown:
        raise SystemExit(f"There is no {', '.join(unknown)}; there are {', '.join(RUNS)}.")
    for name in names or RUNS:
        (_report.OUT / f"{name}.json").unlink(missing_ok=True)  # an older run's
        script, *flags = RUNS[name]
        if script == "throughput.py" and "--engine" not in flags:
            flags += ["--engine", "mpi4py"]
        if name == "key":
            flags += ["--timeline", str(_page.PICTURES / "cycle.svg")]
        if script != "packing.py":
            flags += ["--name", name]
        print(f"== {name}: {script} {' '.join(flags)}", flush=True)
        begin = time.perf_counter()
        try:
            command = [sys.executable, str(HERE / script), *flags]
            done = subprocess.run(command, timeout=_report.LIMIT_SECONDS).returncode
        except subprocess.TimeoutExpired:
            done = "it took too long"
        print(f"== {name}: {time.perf_counter() - begin:.0f} s, status {done}", flush=True)
        failed += [name] * (done != 0)
    _page.write()
    if failed:
        raise SystemExit(f"Failed, and left out of the page: {', '.join(failed)}.")


if __name__ == "__main__":
    _page.PICTURES.mkdir(parents=True, exist_ok=True)
    main(sys.argv[1:])
