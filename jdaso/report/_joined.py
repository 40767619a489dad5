"""The starts of a run on one node, joined: repeated steps count once, totals continue."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
from jaxtyping import Float64

from ._rows import TOTALS, UNWRITTEN, Mark, RunPart
from ._starts import Placed, Start, has_left, placed

Table = dict[str, np.ndarray]
"""A number for each step, by name."""


@dataclasses.dataclass
class Node:
    """The records of one node.

    Attributes:
        node: its number.
        header: the row of kind "run" of the last start, with the settings that came after it.
        starts: number of times that the run was started.
        columns: by the names of the rows of kind "step", a float64 for each step: NaN if it has no
            such number, infinity if its number was not finite. Steps increase. Totals and seconds
            continue across restarts.
        phases: the phase of each step, "" if not known.
        marks: checkpoints and faults.
        events: the latest of the session's timeline, in seconds since the run began.
        totals: the session's `Stats` and "seconds" at the end; from the last row if the node did
            not reach the end.
        ended: whether the last start reached its end.
        stopped: whether the last start was asked to stop, and has saved.
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
    stopped: bool

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


def nodes_of(starts: list[Start]) -> list[Node]:
    """Joins the starts of a run on each node; repeated steps count as in their last repetition."""
    parts = placed(starts).items()
    return [join(of_node, left=has_left(node, starts)) for node, of_node in parts]


def join(parts: list[Placed], *, left: bool) -> Node:
    """Joins the parts of one node.

    Args:
        parts: in their order.
        left: whether the run went on without the node.
    """
    tables: list[Table] = []
    phases: list[str] = []
    marks: list[Mark] = []
    events: list[dict[str, Any]] = []
    spent = dict.fromkeys(TOTALS, 0.0)
    for part, offset, below in parts:
        table = _shifted(part, spent | {"seconds": offset})
        spent = {name: _last_total(table[name], spent[name], part, name) for name in TOTALS}
        stays = table["step"] < below
        tables.append({name: column[stays] for name, column in table.items()})
        phases += itertools.compress(part.phases, stays)
        marks += [mark._replace(seconds=mark.seconds + offset) for mark in part.marks]
        if part is not parts[-1].part and not (part.ended or part.stopped or _told(part)):
            text = "the process ended without a report, and was restarted"
            marks.append(Mark("fault", part.node, part.last_step, offset + part.seconds, text))
        events = [_later(event, offset) for event in part.events] or events
    last, offset, _ = parts[-1]
    totals = {**spent, "seconds": offset + last.seconds}
    joined, phases = _once(_stacked(tables), phases)
    ended = last.ended or left
    about = last.node, last.header, len(parts)
    return Node(*about, joined, phases, marks, events, totals, ended, last.stopped)


def _shifted(part: RunPart, amounts: dict[str, float]) -> Table:
    """Returns the columns of a part, with amounts added to those of the same name."""
    return {name: np.array(x) + amounts.get(name, 0.0) for name, x in part.columns.items()}


def _last_total(column: np.ndarray, before: float, part: RunPart, name: str) -> float:
    """Returns a total at the end of a part: from its last rows, or the row of its end."""
    largest = float(np.nanmax(column, initial=before))
    return max(largest, before + part.totals.get(name, 0.0))


def _later(event: dict[str, Any], seconds: float) -> dict[str, Any]:
    return event | {name: event[name] + seconds for name in ("begin", "end")}


def _stacked(tables: list[Table]) -> Table:
    """Returns tables below each other; NaN in columns that a table has not."""
    names = dict.fromkeys(name for table in tables for name in table)
    none = [np.full(len(table["step"]), np.nan) for table in tables]
    return {
        name: np.concatenate([table.get(name, x) for table, x in zip(tables, none, strict=True)])
        for name in names
    }


def _once(table: Table, phases: list[str]) -> tuple[Table, list[str]]:
    """Returns one row for each step, with the latest of its numbers, and the phases."""
    steps, place = np.unique(table["step"], return_inverse=True)
    once = {name: np.full(steps.size, np.nan) for name in table}
    for name, column in table.items():
        known = ~np.isnan(column)
        once[name][place[known]] = column[known]  # the last assignment to a place counts
    latest = dict(zip(place.tolist(), phases, strict=True))
    return once, [latest[k] for k in range(steps.size)]


def _told(part: RunPart) -> bool:
    """Returns whether a fault of the part could be the reason of its end."""
    faults = (mark for mark in part.marks if mark.kind == "fault")
    return any(not mark.text.startswith(UNWRITTEN) for mark in faults)
