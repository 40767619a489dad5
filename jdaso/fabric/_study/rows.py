"""A row of a study: one launch of one cell, as it stands in ``rows.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from .factors import Level

FORMAT = 2
OK, FAILED, TIMED_OUT = "ok", "failed", "timed out"
OUT_OF_MEMORY, MISSING, OTHER_FABRIC = "out of memory", "missing", "other fabric"
STATUSES = (OK, FAILED, TIMED_OUT, OUT_OF_MEMORY, MISSING, OTHER_FABRIC)


@dataclass(frozen=True)
class Outcome:
    """The result of a launch: measurements if it went well, words if not.

    Attributes:
        status: one of `STATUSES`.
        words: the end of its output, or the reason for the status.
        seconds: of every measured iteration.
        warmup_seconds: of every iteration before them.
        compute_seconds: of the same work without a network; None if it was not measured.
        communication_seconds: of the communication in each iteration, behind compute or not, on the
            slowest node; None if it was not measured.
        bytes_at_interfaces: interface of node 0 -> bytes received, sent in all iterations.
        expected_bytes: the fewest bytes that node 0 must send and receive in all iterations.
        other_nodes: the same two for nodes 1, 2, ..., each as a table.
        chosen: choices that the library reports.
    """

    status: str
    words: str = ""
    seconds: Sequence[float] = ()
    warmup_seconds: Sequence[float] = ()
    compute_seconds: Sequence[float] | None = None
    communication_seconds: Sequence[float] | None = None
    bytes_at_interfaces: Mapping[str, Sequence[int]] = field(default_factory=dict)
    expected_bytes: int = 0
    other_nodes: Sequence[Mapping[str, Any]] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row; `rows.schema.json` describes each key."""

    study: str
    declaration: str
    cell: str
    replicate: int
    attempt: int
    order: int
    factors: Mapping[str, Level]
    outcome: Outcome
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    commit: str
    environment: Mapping[str, str]
    hosts: Sequence[str]
    started: str
    limit_seconds: float
    limit_bytes: int | None

    def as_line(self) -> str:
        """The row as one line of JSON; numbers that JSON lacks (NaN) are refused."""
        table = asdict(self)
        outcome = table.pop("outcome")
        table = {"format": FORMAT, **table, **outcome}
        return json.dumps(table, allow_nan=False)


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of a row, which is a part of the package."""
    text = resources.files(__package__ or "").joinpath("rows.schema.json").read_text("utf-8")
    return json.loads(text)
