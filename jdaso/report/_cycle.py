"""The timeline of one cycle: from the start of an exchange to the start of the next."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import traces
from ._axes import short
from ._charts import figure, legend, patch
from ._html import Element, element
from ._runs import Run, counted

ROWS = {
    "step": ("steps", 0),
    "compute": ("steps", 0),
    "exchange": ("exchange", 2),
    "mean": ("exchange", 3),
    "copy": ("held up", 1),
    "wait": ("held up", 1),
    "pack": ("pack, merge", 4),
    "merge": ("pack, merge", 4),
    "checkpoint": ("checkpoint", 5),
}
"""The row and colour of each event; other events are not drawn."""

_MOST_NODES = 8
_MOST_BYTES = 64 * 2**20


class Bar(NamedTuple):
    """One event of one node; in seconds since a moment that is the same for all nodes."""

    node: int
    name: str
    step: int | None
    begin: float
    end: float


def cycle_chart(run: Run) -> Element | None:
    """Makes rows of bars for each node; None if no exchange was recorded."""
    bars = [bar for bar in bars_of(run) if bar.name in ROWS]
    window = cycle_of(bars)
    if window is None:
        return None
    begin, end = window
    bars = [bar for bar in bars if bar.end > begin and bar.begin < end]
    nodes = sorted({bar.node for bar in bars})
    rows, width = [], 1e3 * (end - begin)
    for node in nodes[:_MOST_NODES]:
        mine = [bar for bar in bars if bar.node == node]
        for row in dict.fromkeys(row for row, _ in ROWS.values()):
            if here := [bar for bar in mine if ROWS[bar.name][0] == row]:
                rows += [element("span", f"node {node}, {row}"), lane(here, node, row, begin, end)]
    scale = [element("span", f"{short(round(width * part / 2, 1))} ms") for part in range(3)]
    axis = element("div", scale, class_="scale")
    there = {ROWS[bar.name] for bar in bars}
    names = [kind for kind in dict.fromkeys(ROWS.values()) if kind in there]
    left_out = len(nodes) - _MOST_NODES
    return figure(
        f"A cycle: {run.name}",
        element("div", rows, element("span"), axis, class_="lanes"),
        legend([(_kind(row, style), patch(f"bar s{style}")) for row, style in names]),
        element("p", f"Left out: {counted(left_out, 'more node')}.") if left_out > 0 else None,
    )


def lane(bars: Sequence[Bar], node: int, row: str, begin: float, end: float) -> Element:
    """Makes one row; its bars stretch with the page."""
    made = []
    for bar in bars:
        left, right = max(bar.begin, begin), min(bar.end, end)
        at = "" if bar.step is None else f" at step {bar.step}"
        made.append(
            element(
                "rect",
                element("title", f"{bar.name}{at}: {short(1e3 * (bar.end - bar.begin))} ms"),
                x=round(1e3 * (left - begin) / (end - begin), 2),
                y=0,
                width=round(max(1e3 * (right - left) / (end - begin), 0.5), 2),
                height=18,
                class_=f"bar s{ROWS[bar.name][1]}",
            )
        )
    total = sum(min(bar.end, end) - max(bar.begin, begin) for bar in bars)
    label = f"node {node}, {row}: {len(bars)} events, {short(1e3 * total)} ms"
    return element(
        "svg", made, viewBox="0 0 1000 18", preserveAspectRatio="none", role="img", aria_label=label
    )


def cycle_of(bars: Sequence[Bar]) -> tuple[float, float] | None:
    """Returns the begin and end of one cycle: two starts of exchanges, with a margin.

    Of the cycles that the first node recorded this is the one of median length; without exchanges,
    blocking means are used.
    """
    for name in ("exchange", "mean"):
        some = [bar for bar in bars if bar.name == name]
        if not some:
            continue
        first = min(bar.node for bar in some)
        starts = sorted((bar.begin, bar.end) for bar in some if bar.node == first)
        if len(starts) == 1:
            begin, end = starts[0]
        else:
            cycles = [(a[0], b[0]) for a, b in itertools.pairwise(starts)]
            begin, end = sorted(cycles, key=lambda cycle: cycle[1] - cycle[0])[len(cycles) // 2]
        room = 0.06 * (end - begin) or 1e-6
        return begin - room, end + room
    return None


def bars_of(run: Run) -> list[Bar]:
    """Returns the events of all nodes: from traces if the run has some, else from the rows."""
    if bars := _traced(run.folder):
        return bars
    for node in run.nodes:
        for event in node.events:
            begin, end, name = event["begin"], event["end"], str(event.get("name"))
            bars.append(Bar(node.node, name, event.get("step"), begin, end))
        if not any(event.get("name") in ("step", "compute") for event in node.events):
            bars += _steps(node.node, node.columns)
    return bars


def _traced(folder: Path) -> list[Bar]:
    """Reads events from traces in a folder; none if there are none, or too many for a page."""
    sizes = [path.stat().st_size for path in folder.glob("trace-*.json")]
    if not sizes or max(sizes) > _MOST_BYTES:
        return []
    try:
        nodes = traces.read(folder).nodes
    except traces.TraceError:
        return []
    return [
        Bar(node.node, event.name, event.step, event.begin_seconds, event.end_seconds)
        for node in nodes
        for event in node.events
    ]


def _steps(node: int, columns: dict[str, Any]) -> list[Bar]:
    """Returns steps as the loop saw them: from one row to the next."""
    steps, seconds = columns["step"].tolist(), columns["seconds"].tolist()
    return [
        Bar(node, "step", int(step) - 1, begin, end)
        for step, begin, end in zip(steps[1:], seconds, seconds[1:], strict=False)
    ]


def _kind(row: str, style: int) -> str:
    return "blocking mean" if (row, style) == ROWS["mean"] else row
