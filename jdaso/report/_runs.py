"""Reads the records of a run: joins parts of a restarted run, leaves out damaged rows."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from .._launch.paths import local_folder
from ..traces._timeline import Stats

TOTALS = Stats._fields
_LARGEST = 2**53
_CLOCKS_APART_SECONDS = 60.0  # the most between clocks, or starts, of nodes


class ReportError(Exception):
    """The given folders cannot be reported on."""


class Mark(NamedTuple):
    """A checkpoint or a fault.

    Attributes:
        kind: "checkpoint" or "fault".
        node: the node it happened on.
        step: completed updates; None if not known.
        seconds: since the run began.
        text: description of the event.
    """

    kind: str
    node: int
    step: int | None
    seconds: float
    text: str


@dataclasses.dataclass
class Node:
    """The records of one node.

    Attributes:
        node: its number.
        header: the row of kind "run" of the last start, with the settings that came after it.
        starts: number of times that the run was started.
        columns: by the names of the rows of kind "step", a float64 for each step, NaN if a row
            has no such number. Steps rise. Totals and seconds continue across restarts.
        phases: the phase of each step, "" if not known.
        marks: checkpoints and faults.
        events: the latest of the session's timeline, in seconds since the run began.
        totals: the session's `Stats` and "seconds" at the end; from the last row if the node did
            not reach the end.
        ended: whether the last start reached its end.
    """

    node: int
    header: dict[str, Any]
    starts: int
    columns: dict[str, Float64[np.ndarray, " steps"]]
    phases: list[str]
    marks: list[Mark]
    events: list[dict[str, Any]]
    totals: dict[str, float]
    ended: bool

    @property
    def scalars(self) -> list[str]:
        """Names of the numbers that the program gave."""
        own = {"step", "seconds", "sync_every", "delay", *TOTALS}
        return [name for name in self.columns if name not in own]

    @property
    def steps(self) -> int:
        """Completed updates."""
        return int(self.columns["step"].max(initial=0))

    def column(self, name: str) -> Float64[np.ndarray, " steps"]:
        """Returns a column; all NaN if no row has it."""
        return self.columns.get(name, np.full(len(self.phases), np.nan))

    def last(self, name: str) -> float:
        """Returns the last number of a column; NaN if there is none."""
        column = self.column(name)
        column = column[~np.isnan(column)]
        return float(column[-1]) if column.size else float("nan")


@dataclasses.dataclass
class Run:
    """The records of all nodes of a run.

    Attributes:
        name: name of the folder.
        folder: path of the folder.
        nodes: by their number.
        damaged: rows that could not be read, as "node-00003.jsonl, line 17: why".
        older: whether the folder also holds an older run, which is left out: one that had ended
            before this run began with its first step.
    """

    name: str
    folder: Path
    nodes: list[Node]
    damaged: list[str]
    older: bool = False

    @property
    def steps(self) -> int:
        """Completed updates of the node that got furthest."""
        return max(node.steps for node in self.nodes)


def read_run(folder: str | Path) -> Run:
    """Reads the rows that `jdaso.metrics.Recorder` wrote.

    Args:
        folder: the recorder's folder.

    Returns:
        The run; unreadable rows are left out and listed in `Run.damaged`.

    Raises:
        ReportError: the folder does not exist or holds no row.
    """
    folder = local_folder(folder)
    if not folder.is_dir():
        raise ReportError(
            f"{folder} is not a folder. Give the folder that jdaso.metrics.Recorder wrote to."
        )
    files = [path for path in folder.iterdir() if re.fullmatch(r"node-\d+\.jsonl", path.name)]
    files.sort(key=lambda path: (len(path.name), path.name))
    if not files:
        raise ReportError(
            f"{folder} has no node-*.jsonl. Write them with jdaso.metrics.Recorder(folder, session)"
            ", or with python -m jdaso demo --record FOLDER."
        )
    damaged: list[str] = []
    parts = [some for path in files if (some := _read_parts(path, damaged))]
    latest = [_of_latest_run(some) for some in parts]
    begun = min((some[0].time for some in latest[:1]), default=0.0) - _CLOCKS_APART_SECONDS
    latest = [some for some in latest if some[-1].time >= begun]
    older = sum(map(len, latest)) < sum(map(len, parts))
    zero = min((some[0].time for some in latest), default=0.0)
    for some in latest:
        _forget(some, [part for other in latest for part in other])
    nodes = [_join(some, zero) for some in latest]
    if not any(node.columns["step"].size for node in nodes):
        rows = f"; {len(damaged)} rows are damaged, as {damaged[0]}" if damaged else ""
        raise ReportError(f"{folder} has no row of a step{rows}. Call recorder.step in the loop.")
    return Run(folder.resolve().name or str(folder), folder, nodes, damaged, older)


def _read_parts(path: Path, damaged: list[str]) -> list[_Part]:
    """Reads the rows of each start in a file; adds unreadable ones to `damaged`."""
    parts: list[_Part] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                try:
                    _take(json.loads(line.rstrip("\n")), parts)
                except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                    why = str(error).partition("\n")[0]
                    damaged.append(f"{path.name}, line {number}: {why}")
    except OSError as error:
        damaged.append(f"{path.name}: {error}")
    return parts


class _Part:
    """The rows of one start of a run."""

    def __init__(self, header: dict[str, Any]):
        self.header = {**header, "settings": dict(header.get("settings") or {})}
        self.time = number_of(header["time"])
        self.node = count_of(header["node"])
        self.columns = {name: array("d") for name in ("step", "seconds", *TOTALS)}
        self.phases: list[str] = []
        self.marks: list[Mark] = []
        self.events: list[dict[str, Any]] = []
        self.ended = False
        self.totals: dict[str, float] = {}  # from the row of its end

    def add_step(self, row: dict[str, Any]) -> None:
        count_of(row["step"])
        numbers = {
            name: float("nan") if value is None else number_of(value)
            for name, value in row.items()
            if name not in ("kind", "phase")
        }
        if not np.isfinite(numbers["seconds"]):
            raise ValueError("its seconds are not a number")
        size = len(self.phases)
        for name in numbers.keys() - self.columns.keys():
            self.columns[name] = array("d", [float("nan")]) * size
        for name, column in self.columns.items():
            column.append(numbers.get(name, float("nan")))
        self.phases.append(str(row.get("phase", "")))

    @property
    def first_step(self) -> int | None:
        return int(self.columns["step"][0]) if self.phases else None

    @property
    def last_step(self) -> int:
        return int(self.columns["step"][-1]) if self.phases else 0


def _take(row: Any, parts: list[_Part]) -> None:
    """Adds a row to the part it belongs to."""
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    kind = row.get("kind")
    if kind == "run":
        parts.append(_Part(row))
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
        part.events += [event for event in row["events"] if is_event(event)]
    elif kind == "end":
        part.ended = True
        part.totals = {name: number_of(row[name]) for name in ("seconds", *TOTALS) if name in row}
    else:
        raise ValueError(f"its kind is {kind!r}")


def counted(number: int, what: str) -> str:
    """Formats a count: 1 node, 2 nodes."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def number_of(value: Any) -> float:
    """Returns a number from a row."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def count_of(value: Any) -> int:
    """Returns a number of steps, or of a node."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r} is not a count")
    return value


def is_event(event: Any) -> bool:
    """Returns whether an event has the fields that are drawn."""
    return isinstance(event, dict) and all(
        isinstance(event.get(name), int | float) for name in ("begin", "end")
    )


def _of_latest_run(parts: list[_Part]) -> list[_Part]:
    """Returns the starts of the latest run: from the last one at step 1 after an ended run."""
    new = [
        k for k, part in enumerate(parts) if k and parts[k - 1].ended and part.first_step in (0, 1)
    ]
    return parts[new[-1] :] if new else parts


def _join(parts: list[_Part], zero: float) -> Node:
    """Joins several starts to one run; repeated steps count as in their last repetition."""
    kept: list[dict[str, np.ndarray]] = []
    phases: list[str] = []
    marks: list[Mark] = []
    events: list[dict[str, Any]] = []
    offset, spent = 0.0, dict.fromkeys(TOTALS, 0.0)
    for k, part in enumerate(parts):
        offset = max(offset, part.time - zero)
        columns = {name: np.array(column) for name, column in part.columns.items()}
        columns["seconds"] += offset
        for name in TOTALS:
            columns[name] += spent[name]
        first = columns["step"][0] if part.phases else np.inf
        for earlier in kept:
            stays = earlier["step"] < first
            earlier.update({name: column[stays] for name, column in earlier.items()})
        phases = phases[: sum(len(earlier["step"]) for earlier in kept)] + part.phases
        kept.append(columns)
        marks += [mark._replace(seconds=mark.seconds + offset) for mark in part.marks]
        shift = {"begin": offset, "end": offset}
        events = [{n: v + shift.get(n, 0) if n in shift else v for n, v in event.items()}
                  for event in part.events] or events  # fmt: skip
        begun = offset
        if part.phases:
            offset = float(columns["seconds"][-1])
        offset = max(offset, begun + part.totals.get("seconds", 0.0))
        spent = {
            name: max(
                float(np.nanmax(columns[name], initial=spent[name])),
                spent[name] + part.totals.get(name, 0.0),
            )
            for name in TOTALS
        }
        if k < len(parts) - 1 and not part.ended and not _told(part):
            text = "the process ended without a word, and was started again"
            marks.append(Mark("fault", part.node, part.last_step, offset, text))
    names = dict.fromkeys(name for columns in kept for name in columns)
    empty = lambda columns: np.full(len(columns["step"]), np.nan)  # noqa: E731
    joined = {
        name: np.concatenate([columns.get(name, empty(columns)) for columns in kept])
        for name in names
    }
    last = parts[-1]
    totals = {**spent, "seconds": offset}
    return Node(
        last.node, last.header, len(parts), joined, phases, marks, events, totals, ended=last.ended
    )


def _forget(parts: list[_Part], starts: list[_Part]) -> None:
    """Drops steps of a node that a later start repeated without it."""
    last = parts[-1]
    later = [
        start
        for start in starts
        if start.time > last.time and count_of(start.header.get("num_nodes", 2**53)) <= last.node
    ]
    first = min((start.columns["step"][0] for start in later if start.phases), default=math.inf)
    for part in parts:
        kept = [k for k, step in enumerate(part.columns["step"]) if step < first]
        part.columns = {n: array("d", [c[k] for k in kept]) for n, c in part.columns.items()}
        part.phases = [part.phases[k] for k in kept]
    last.ended = last.ended or bool(later)


def _told(part: _Part) -> bool:
    return any(mark.kind == "fault" for mark in part.marks)
