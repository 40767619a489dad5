"""Rows of a node's file, by the starts of a run; unreadable ones are listed."""

from __future__ import annotations

import json
import sys
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..traces._file import KINDS as TRACED
from ..traces._timeline import Stats

TOTALS = Stats._fields
_LARGEST = 2**53


UNWRITTEN = "a checkpoint could not be written"
"""Begins the text of the fault that `jdaso.checkpoint` notes for a save that failed."""


class Mark(NamedTuple):
    """A checkpoint or a fault.

    Attributes:
        kind: "checkpoint" or "fault".
        node: the node of the event.
        step: completed updates; None if not known.
        seconds: since the run began.
        text: description of the event.
    """

    kind: str
    node: int
    step: int | None
    seconds: float
    text: str


def read_parts(path: Path, damaged: list[str]) -> list[RunPart]:
    """Reads the rows of each start in a file; adds unreadable ones to `damaged`."""
    parts: list[RunPart] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                if line.startswith(TRACED):
                    continue
                try:
                    _take(json.loads(line.rstrip("\n")), parts)
                except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                    why = str(error).partition("\n")[0]
                    damaged.append(f"{path.name}, line {number}: {why}")
    except OSError as error:
        damaged.append(f"{path.name}: {error}")
    return parts


class RunPart:
    """The rows of one start of a run on one node.

    Attributes:
        time: when the session began, in Unix seconds of node 0: the same on all its nodes.
        begin: when this node's rows began, in the same seconds.
    """

    def __init__(self, header: dict[str, Any]):
        self.header = {**header, "settings": dict(header.get("settings") or {})}
        self.time = number_of(header["time"])
        self.begin = self.time + number_of(header["seconds"])
        if not np.isfinite(self.begin):
            raise ValueError("its time is not a number")
        self.node = count_of(header["node"])
        self.num_nodes = count_of(header.get("num_nodes", _LARGEST))
        self.columns = {name: array("d") for name in ("step", "seconds", *TOTALS)}
        self.phases: list[str] = []
        self.marks: list[Mark] = []
        self.events: list[dict[str, Any]] = []
        self.ended = self.stopped = False
        self.totals: dict[str, float] = {}  # from the row of its end

    def add_step(self, row: dict[str, Any]) -> None:
        count_of(row["step"])
        numbers = {
            name: _in_column(value) for name, value in row.items() if name not in ("kind", "phase")
        }
        own = [numbers["seconds"], *(numbers.get(name, 0.0) for name in TOTALS)]
        if not np.isfinite(own).all():
            raise ValueError("its seconds or totals are not finite")
        size = len(self.phases)
        for name in numbers.keys() - self.columns.keys():
            self.columns[name] = array("d", [float("nan")]) * size
        for name, column in self.columns.items():
            column.append(numbers.get(name, float("nan")))
        self.phases.append(str(row.get("phase", "")))

    @property
    def seconds(self) -> float:
        """Seconds of its last row, since its begin."""
        return max([*self.columns["seconds"][-1:], self.totals.get("seconds", 0.0)])

    @property
    def last_step(self) -> int:
        return int(self.columns["step"][-1]) if self.phases else 0


def _take(row: Any, parts: list[RunPart]) -> None:
    """Adds a row to the part that the row belongs to."""
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    kind = row.get("kind")
    if kind == "run":
        parts.append(RunPart(row))
        return
    if not parts:
        raise ValueError('no row of kind "run" comes before it')
    part = parts[-1]
    if kind == "step":
        part.add_step(row)
    elif kind == "settings":
        part.header["settings"] |= row["settings"]
    elif kind in ("checkpoint", "fault"):
        step = None if row.get("step") is None else count_of(row["step"])
        seconds = number_of(row["seconds"])
        part.marks.append(Mark(kind, part.node, step, seconds, str(row.get("text", ""))))
    elif kind == "events":
        _take_events(row["events"], part)
    elif kind == "end":
        part.stopped = row.get("stopped", 0) == 1
        part.ended = not part.stopped
        part.totals = {name: number_of(row[name]) for name in ("seconds", *TOTALS) if name in row}
    else:
        raise ValueError(f"its kind is {kind!r}")


def number_of(value: Any) -> float:
    """Returns a number from a row."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _in_column(value: Any) -> float:
    """Returns a number of a step: NaN if missing, infinity if not finite."""
    if value is None:
        return float("nan")
    number = number_of(value)
    return number if np.isfinite(number) else float("inf")


def count_of(value: Any) -> int:
    """Returns a number of steps, or of a node."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r} is not a count")
    return value


def _take_events(events: list[Any], part: RunPart) -> None:
    """Adds the events that can be drawn.

    Raises:
        ValueError: there are others; the text counts them and names the first.
    """
    reasons = [why_damaged(event) for event in events]
    part.events += [event for event, why in zip(events, reasons, strict=True) if not why]
    if damaged := [why for why in reasons if why]:
        raise ValueError(f"{len(damaged)} of {len(events)} events left out: {damaged[0]}")


def why_damaged(event: Any) -> str:
    """Returns the reason why an event cannot be drawn; empty if it can be."""
    if not isinstance(event, dict):
        return "it is not a JSON object"
    for name in ("begin", "end"):
        value = event.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"its {name} is {value!r}"
        if not abs(value) <= sys.float_info.max:
            return f"its {name} is {value!r}"
    step = event.get("step")
    if isinstance(step, bool) or not isinstance(step, int | None):
        return f"its step is {step!r}"
    return ""
