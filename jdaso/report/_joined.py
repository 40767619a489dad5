"""The starts of a run on one node, joined: repeated steps count once, totals continue."""

from __future__ import annotations

import dataclasses
import math
from array import array
from typing import Any

import numpy as np
from jaxtyping import Float64

from ._rows import TOTALS, Mark, RunPart, count_of


@dataclasses.dataclass
class Node:
    """The records of one node.

    Attributes:
        node: its number.
        header: the row of kind "run" of the last start, with the settings that came after it.
        starts: number of times that the run was started.
        columns: by the names of the rows of kind "step", a float64 for each step, NaN if a row
            has no such number. Steps increase. Totals and seconds continue across restarts.
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


def of_latest_run(parts: list[RunPart]) -> list[RunPart]:
    """Returns the starts of the latest run: from the last one at step 1 after an ended run."""
    new = [
        k for k, part in enumerate(parts) if k and parts[k - 1].ended and part.first_step in (0, 1)
    ]
    return parts[new[-1] :] if new else parts


def join(parts: list[RunPart], zero: float) -> Node:
    """Joins several starts into one run; repeated steps count as in their last repetition."""
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
            text = "the process ended without a report, and was restarted"
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


def forget(parts: list[RunPart], starts: list[RunPart]) -> None:
    """Drops steps of a node that a later start repeated without that node."""
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


def _told(part: RunPart) -> bool:
    return any(mark.kind == "fault" for mark in part.marks)
