"""Runs the parts of ``make bench``: all that `docs/benchmarks.md` shows, and the page.

    python benchmarks/all.py [PART ...]

Takes an hour at most: parts that have not ended by then are stopped, and the page lists what is
missing (parts, and for a stopped one the cells it has). Parts run in the order of their
importance; those that are left out can be added by name.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.lib import harness, page
from benchmarks.lib.marks import JDASO, SYNCHRONOUS

HERE = Path(__file__).parent
LIMITS = ["bare", "instant"]
WIRES = [JDASO, "daso float32 corrected", "daso int8 corrected"]
MERGES = ["daso bfloat16 paper", "daso bfloat16 outer"]
PEERS = [*SYNCHRONOUS, "torch post-local sgd"]
LIMIT_MINUTES = 58.0
STOPPED, NOT_BEGUN = "stopped: no time left", "not begun: no time left"
VIRTUAL = ["accuracy/accuracy.py", "--seeds", "1", "--nodes", "--simulated"]
SETTINGS = ["--settings", "synchronous", "default", "paper", "near", "half warm-up", "mild outer"]
PASSES = ["--pass-ms", "100", "--rounds", "2"]
SHORT = ["--rounds", "1", "--cycles", "2", "--warm", "2"]

RUNS = {
    "key": [  # each in its own processes: memory is shown, and all at once would not fit
        *("speed/throughput.py", "--separate", "--rounds", "1", "--methods"),
        *(*LIMITS, *WIRES, *MERGES, *PEERS),
    ],
    "demo": [
        *("speed/throughput.py", "--compute", "demo", "--gigabits", "0.1", "1", "--rounds", "1"),
        *("--cycles", "5", "--methods", *LIMITS, JDASO, *PEERS),
    ],
    "time_to_accuracy": ["accuracy/time_to_accuracy.py", "--methods", "synchronous", "daso"],
    "accuracy": [
        *("accuracy/accuracy.py", "--tasks", "fashion", "fashion-adamw", "--simulated"),
        *("--settings", "synchronous", "default"),
    ],
    "shipped": ["speed/shipped.py"],
    "step_memory": ["cost/step_memory.py"],
    "links": [  # eight hosts with more numbers do not fit into 24 GiB
        *("speed/links.py", "--hosts", "4", "8", "--gigabits", "1", "--megabytes", "24"),
    ],
    "mpi4jax": [
        *("speed/throughput.py", "--separate", "--rounds", "1", "--engine", "mpi4jax", "--methods"),
        *(*LIMITS, JDASO, "synchronous"),
    ],
    "pipelines": ["pipelines/pipelines.py", "--parts", "efficiency", *PASSES],
    "hybrid": ["pipelines/pipelines.py", "--parts", "hybrid", *PASSES],
    "deep": ["pipelines/deep_pipelines.py", "--depths", "110", "1001"],
    "rare": ["speed/throughput.py", *SHORT, "--sync-every", "8", "--methods", *LIMITS, JDASO],
    "grid": [
        *("speed/throughput.py", *SHORT, "--hosts", "2", "4", "--gigabits", "1", "2.5", "10"),
        *("--step-ms", "100", "200", "400", "--methods", *LIMITS, JDASO, "synchronous"),
    ],
    "many_nodes": [*VIRTUAL, "64", "--tasks", "fashion", "--rate", "0.1", *SETTINGS],
    "text": [
        *("speed/throughput.py", "--compute", "text", "--gigabits", "0.1", "1", "--rounds", "1"),
        *("--cycles", "5", "--methods", *LIMITS, JDASO, *PEERS),
    ],
    "eight": [  # half as many parameters: 25.6 M do not fit into 24 GiB
        *(
            "speed/throughput.py",
            *SHORT,
            "--separate",
            "--hosts",
            "8",
            "--gigabits",
            "1",
            "2.5",
            "10",
        ),
        *("--parameters", "12.8e6", "--step-ms", "200", "400", "--methods", *LIMITS, JDASO),
    ],
    "ranks_per_node": ["speed/ranks_per_node.py", "--rounds", "3"],
    "large": [
        *("speed/throughput.py", *SHORT, "--separate", "--hosts", "2", "--gigabits", "1", "10"),
        *("--parameters", "124e6", "138e6", "--methods", *LIMITS, JDASO),
    ],
    "more_nodes": [
        *(*VIRTUAL, "8", "16", "32", "128", "--tasks", "fashion", "--rate", "0.1", *SETTINGS),
    ],
    "many_nodes_adamw": [*VIRTUAL, "64", "--tasks", "fashion-adamw", *SETTINGS],
    "settings": ["accuracy/accuracy.py", "--tasks", "fashion", "--simulated"],
    "settings_text": [
        *("accuracy/accuracy.py", "--tasks", "text", "--nodes", "2", "4", "--simulated"),
    ],
    "accuracy_text": [
        *("accuracy/accuracy.py", "--tasks", "text", "--nodes", "4", "--simulated"),
        *("--settings", "synchronous", "default"),
    ],
}


def main(names):
    """Runs those that are named, or all; of one that fails the page shows what it had by then."""
    unknown = [name for name in names if name not in RUNS]
    ends = {}
    end = time.perf_counter() + 60 * LIMIT_MINUTES
    if unknown:
        raise SystemExit(f"There is no {', '.join(unknown)}; there are {', '.join(RUNS)}.")
    for name in names or RUNS:
        (harness.OUT / f"{name}.json").unlink(missing_ok=True)  # an older run's
        script, *flags = RUNS[name]
        if script == "speed/throughput.py" and "--engine" not in flags:
            flags += ["--engine", "mpi4py"]
        if name == "key":
            flags += ["--timeline", str(page.PICTURES / "cycle.svg")]
        if script != "cost/step_memory.py":
            flags += ["--name", name]
        print(f"== {name}: {script} {' '.join(flags)}", flush=True)
        begin = time.perf_counter()
        ends[name] = run([sys.executable, str(HERE / script), *flags], end - begin)
        print(f"== {name}: {time.perf_counter() - begin:.0f} s, status {ends[name]}", flush=True)
    page.write()
    if left := [name for name, status in ends.items() if status in (STOPPED, NOT_BEGUN)]:
        print(f"No time was left for all of these; PARTS='{' '.join(left)}' adds them.")
    if failed := [name for name, status in ends.items() if status not in (0, STOPPED, NOT_BEGUN)]:
        raise SystemExit(f"Failed; the page shows what they had by then: {', '.join(failed)}.")


def run(command, seconds):
    """Returns the exit status, or words if it is stopped: as Ctrl-C does, so that it tears down."""
    if seconds <= 0:
        return NOT_BEGUN
    process = subprocess.Popen(command)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return STOPPED


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    page.PICTURES.mkdir(parents=True, exist_ok=True)
    main(sys.argv[1:])
