"""A small study and rows of it, for tests."""

import json

from jdaso.fabric._study import crossing
from jdaso.fabric._study.declaration import study_of
from jdaso.fabric._study.rows import Outcome, Row

DECLARED = {
    "name": "small",
    "replicates": 3,
    "seed": 7,
    "limit_seconds": 20,
    "factors": {
        "fabric": "here",
        "library": ["one", "two"],
        "workload": "mine",
        "nodes": 1,
        "bytes": [1, 2, 3, 4],
    },
    "workloads": {"mine": {"program": "mine.py", "reads": ["bytes"]}},
}


def small(**changes):
    return study_of({**DECLARED, **changes})


def with_program(path, text, **changes):
    """The small study, with a program that is written to a file."""
    path.write_text(text)
    return small(workloads={"mine": {"program": str(path), "reads": ["bytes"]}}, **changes)


def launches(study):
    return crossing.in_order(study.cells, study.replicates, study.seed)


def row_of(study, order, cell, replicate, outcome=None, attempt=1):
    return Row(
        study=study.name,
        declaration=study.declaration,
        cell=cell.id,
        replicate=replicate,
        attempt=attempt,
        order=order,
        factors=cell.factors,
        outcome=outcome or Outcome("ok", seconds=[0.25, 0.5], warmup_seconds=[1.0]),
        machine={"cores": 2},
        versions={"python": "3.11"},
        commit="unknown",
        environment={},
        hosts=["n01"],
        started="2026-01-01T00:00:00+00:00",
        limit_seconds=study.limit_seconds,
        limit_bytes=study.limit_bytes,
    )


def rows_of(study):
    return [
        row_of(study, n, cell, replicate) for n, (replicate, cell) in enumerate(launches(study))
    ]


def lines(folder):
    return [json.loads(line) for line in (folder / "rows.jsonl").read_bytes().splitlines()]
