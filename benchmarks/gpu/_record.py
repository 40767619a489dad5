"""The record of a run of `gpu.py`: goals and what was reached, machine, tables; pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]
DRY_RUN = (
    "**This is a dry run on a CPU.** It shows that every part runs. Its figures say nothing about "
    "a GPU, and goals are not judged by them."
)


class Goal(NamedTuple):
    """A limit for a number of a part's rows; the worst row counts.

    Attributes:
        what: in words.
        part: its name.
        column: of its rows.
        limit: the most that it may be.
        unit: of the limit; "" for a ratio.
    """

    what: str
    part: str
    column: str
    limit: float
    unit: str


GOALS = (
    Goal("a start, over the copy of its bytes to the host", "start_wait", "start / out", 1.3, ""),
    Goal("a wait, over the copy of its bytes to the device", "start_wait", "wait / in", 1.3, ""),
    Goal("a step with nothing due, over the bare step", "nothing_due", "more us", 50.0, "us"),
    Goal("memory of a step beyond the bare one", "memory", "copies", 0.3, "copies"),
)


class Judged(NamedTuple):
    """A goal and what was measured: the worst of its rows, and "yes", "no" or "not measured"."""

    goal: Goal
    measured: float | None
    met: str


def judge(parts: Mapping[str, Mapping[str, Any]], *, dry_run: bool) -> list[Judged]:
    """Each goal beside what the parts' rows say of it.

    One that a part has no number for is not met by that: it says "not measured", and so does every
    goal of a dry run. Rows of a part that failed on the way count.
    """
    return [_judge(goal, parts.get(goal.part, {}), dry_run) for goal in GOALS]


def _judge(goal: Goal, part: Mapping[str, Any], dry_run: bool) -> Judged:
    numbers = [row[goal.column] for row in part.get("rows", ()) if goal.column in row]
    if not numbers:
        return Judged(goal, None, "not measured")
    worst = max(numbers)
    if dry_run:
        return Judged(goal, worst, "dry run")
    complete = part["status"] == "ok"
    if worst > goal.limit:
        return Judged(goal, worst, "no")
    return Judged(goal, worst, "yes" if complete else "not measured")


def wrong_answers(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Parts that failed, and those whose rows say that something is not right."""
    found = []
    for name, part in parts.items():
        if part["status"] != "ok":
            found.append(f"{name}: {part['status']}, {part['why'].splitlines()[0]}")
        for row in part["rows"]:
            if row.get("right", "yes") != "yes" or row.get("status", "ok") != "ok":
                found.append(f"{name}: {', '.join(f'{k} {v}' for k, v in row.items())}")
    return found


def markdown(record: Mapping[str, Any], judged: Sequence[Judged]) -> str:
    """The record as a page."""
    lines = ["# jdaso on a GPU", ""]
    if record["dry_run"]:
        lines += [DRY_RUN, ""]
    lines += [f"- {key}: {value}" for key, value in record["machine"].items()]
    lines += ["", "## Goals", "", *table([_goal_row(each) for each in judged])]
    for name, part in record["parts"].items():
        lines += [
            "",
            f"## {name}",
            "",
            f"{part['about']} ({part['seconds']:.0f} s, {part['status']})",
        ]
        lines += ["", *table(part["rows"])] if part["rows"] else []
        if part["status"] != "ok":
            lines += ["", "```text", part["why"], "```"]
    return "\n".join(lines) + "\n"


def _goal_row(judged: Judged) -> dict[str, Any]:
    goal, unit = judged.goal, f" {judged.goal.unit}".rstrip()
    measured = "" if judged.measured is None else f"{judged.measured:.3g}{unit}"
    limit = f"{goal.limit:g}{unit} or less"
    return {"what": goal.what, "goal": limit, "measured": measured, "met": judged.met}


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a Markdown table; a column for each key of any row."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_text(row.get(key, "")) for key in columns] for row in rows]
    lines = [columns, ["---" for _ in columns], *cells]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return str(round(value)) if 1000 <= abs(value) < 1e15 else f"{value:.3g}"
    return str(value).replace("|", "/").replace("\n", " ")
