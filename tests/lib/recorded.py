"""Runs as `jdaso.metrics.Recorder` writes them, invented for the tests of the report."""

import json

from jdaso import Stats

STATS = Stats._fields


def header(node, **fields):
    """A row of kind "run"."""
    row = {
        "kind": "run",
        "time": 100.0,
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
