"""Runs as `jdaso.metrics.Recorder` writes them, invented for the tests of the report."""

import json
from pathlib import Path

import numpy as np

from jdaso import Stats
from jdaso.report import Mark, Node, Run

STATS = Stats._fields


def header(node, **fields):
    """A row of kind "run"."""
    row = {
        "kind": "run",
        "time": 100.0,
        "seconds": 0.0,
        "node": node,
        "num_nodes": 1,
        "host": "h",
        "devices": ["d"],
    }
    return row | {"engine": "mpi4py", "versions": {"jax": "1"}, "settings": {}} | fields


def step(n, **fields):
    """A row of kind "step", a tenth of a second after the one before it."""
    row = {"kind": "step", "step": n, "seconds": n / 10, "phase": "cycling"}
    return row | {"sync_every": 4, "delay": 2} | dict.fromkeys(STATS, 0) | fields


def write_run(folder, nodes):
    """Writes the rows of each node; a string is written as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for node, rows in enumerate(nodes):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"node-{node:05}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def long_run(name, steps=100_000, nodes=16):
    """A run as `read_run` gives it, without its files; checkpoints, and a number in every row."""
    random, n = np.random.default_rng(0), np.arange(1, steps + 1)
    totals = dict(zip(STATS, np.cumsum(random.random((len(STATS), steps)), axis=1), strict=True))
    columns = totals | {"step": 1.0 * n, "seconds": n / 10, "sync_every": 1.0 + n // 300 % 4}
    columns |= {"delay": 1.0 + n // 300 % 2, "loss": 2 / n + random.random(steps)}
    marks = [Mark("checkpoint", 0, k, k / 10, "") for k in range(100, steps, 100)]
    end = {"seconds": steps / 10} | {name: total[-1] for name, total in totals.items()}
    phases = ["cycling"] * steps
    made = [
        Node(k, header(k), 1, columns, phases, marks, [], end, ended=True, stopped=False)
        for k in range(nodes)
    ]
    return Run(name, Path(name), made, [])
