"""Rows of a study with known truth, as the runner writes them."""

import json

import numpy as np

from jdaso.fabric._study.measured import launches_of


def row(fabric="a", replicate=0, seconds=(1.0, 1.1, 0.9), status="ok", **other):
    """A row; keywords that are no fields of it are factors, and one that is None is left out."""
    fields = {"words", "compute_seconds", "communication_seconds", "declaration", "format"}
    fields |= {"study", "bytes_at_interfaces"}
    found = {
        "format": 2,
        "study": "known",
        "declaration": "d",
        "cell": f"c-{fabric}",
        "replicate": replicate,
        "order": replicate,
        "factors": {"fabric": fabric, "workload": "allreduce", "nodes": 2, "bytes": 1024}
        | {name: value for name, value in other.items() if name not in fields},
        "status": status,
        "words": "",
        "seconds": list(seconds),
        "warmup_seconds": [],
        "compute_seconds": None,
        "bytes_at_interfaces": {"eth0": [10, 20]},
        "expected_bytes": 15,
        "chosen": "",
        "machine": {},
        "versions": {},
        "commit": "",
        "environment": {},
        "started": "2030-01-01T00:00:00+00:00",
        "limit_seconds": 60,
    }
    found["factors"] = {name: x for name, x in found["factors"].items() if x is not None}
    return found | {name: value for name, value in other.items() if name in fields}


def rows_of(truth, replicates=5, spread=0.01, seed=0, iterations=9, drift=0.0):
    """Rows of fabrics with the median seconds `truth`, a dict of fabric -> seconds.

    Launches differ by `spread`, and all fabrics by `drift` from replicate to replicate (both
    standard deviations of the logarithm); iterations within a launch by 2 %.
    """
    random, found = np.random.default_rng(seed), []
    for replicate in range(replicates):
        common = random.normal(0, drift) if drift else 0.0
        for fabric, median in truth.items():
            launch = median * np.exp(common + random.normal(0, spread))
            noise = np.exp(random.normal(0, 0.02, iterations))
            found.append(row(fabric, replicate, launch * noise))
    return found


def launches(*args, **keywords):
    return launches_of(rows_of(*args, **keywords))


def write(folder, rows, margin=0.05, rates=(), claims=()):
    """Writes rows as a study's folder; `rates` has those of emulated fabrics, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = {str(one["factors"]): one["factors"] for one in rows}
    rates = dict(rates)
    fabrics = {one["fabric"]: {"rate": rates.get(one["fabric"], "")} for one in cells.values()}
    study = {"margin": margin, "cells": [*cells.values()], "fabrics": fabrics, "claims": [*claims]}
    declared = {"declaration": "d", "study": study}
    (folder / "declaration.json").write_text(json.dumps(declared))
    (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder
