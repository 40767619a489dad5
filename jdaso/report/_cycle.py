"""The timeline of one cycle: from the start of an exchange to the start of the next."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import traces
from ._charts import COLOURS, Plot, Switch, add_hover, figure, new_plot, patch
from ._html import Element, short, table
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
_MOST_BYTES = 128 * 2**20


class Bar(NamedTuple):
    """One event of one node; in seconds since a moment that is the same for all nodes."""

    node: int
    name: str
    step: int | None
    begin: float
    end: float
    channel: str = ""  # of an exchange: each fragment has its own


def cycle_chart(run: Run) -> Element | None:
    """Makes rows of bars for each node; None if no exchange was recorded."""
    bars = [bar for bar in bars_of(run) if bar.name in ROWS]
    window = cycle_of(bars)
    if window is None:
        return None
    begin, end = window
    bars = [bar for bar in bars if bar.end > begin and bar.begin < end]
    nodes = sorted({bar.node for bar in bars})
    names = dict.fromkeys(name for name, _ in ROWS.values())
    rows: dict[str, list[Bar]] = {}
    for node, name in itertools.product(nodes[:_MOST_NODES], names):
        if here := [bar for bar in bars if bar.node == node and ROWS[bar.name][0] == name]:
            rows[f"node {node}, {name}"] = here
    width, height = 1e3 * (end - begin), 110 + 24 * len(rows)
    plot = new_plot("ms", "", y_range=[*rows][::-1], x_range=(0, width), height=height)
    switches = draw_bars(plot, rows, begin)
    cells = []
    for row, here in rows.items():
        ms = sum(1e3 * (min(bar.end, end) - max(bar.begin, begin)) for bar in here)
        cells.append([row, str(len(here)), short(ms)])
    words = "; ".join(f"{row}: {count} events, {ms} ms" for row, count, ms in cells)
    if (left_out := len(nodes) - _MOST_NODES) > 0:
        words += f". Left out: {counted(left_out, 'more node')}"
    title = f"A cycle: {run.name}"
    numbers = table(f"{title}, {short(width)} ms", ["", "events", "ms in the cycle"], cells)
    return figure(title, plot, words, switches, [numbers])


def draw_bars(plot: Plot, rows: Mapping[str, Sequence[Bar]], begin: float) -> list[Switch]:
    """Draws bars, which may reach beyond the cycle that the plot shows, and returns the legend."""
    switches = []
    for row, style in dict.fromkeys(ROWS.values()):
        some = [(y, bar) for y in rows for bar in rows[y] if ROWS[bar.name] == (row, style)]
        if not some:
            continue
        source = {
            "y": [y for y, _ in some],
            "left": [1e3 * (bar.begin - begin) for _, bar in some],
            "right": [1e3 * (bar.end - begin) for _, bar in some],
            "ms": [1e3 * (bar.end - bar.begin) for _, bar in some],
            "name": [bar.name for _, bar in some],
            "step": [str(bar.step) for _, bar in some],
        }
        name = "blocking mean" if (row, style) == ROWS["mean"] else row
        look = {"height": 0.8, "color": COLOURS[style], "fill_alpha": 0.85}
        drawn = plot.hbar("y", left="left", right="right", name=name, source=source, **look)
        add_hover(plot, [drawn], [("", "@name"), ("step", "@step"), ("ms", "@ms")])
        switches.append((name, patch(COLOURS[style], stroke_width=10)))
    return switches


def cycle_of(bars: Sequence[Bar]) -> tuple[float, float] | None:
    """Returns the start and end of one cycle: two starts of one fragment, with a margin.

    Of the first node's cycles, this is the one of median length; without exchanges, blocking means
    are used.
    """
    for name in ("exchange", "mean"):
        some = [bar for bar in bars if bar.name == name]
        if not some:
            continue
        first = min(some, key=lambda bar: (bar.node, bar.begin))
        some = [bar for bar in some if (bar.node, bar.channel) == (first.node, first.channel)]
        by_step: dict[float, Bar] = {}  # a trace has such an event on several tracks
        for bar in sorted(some, key=lambda bar: bar.begin):
            by_step.setdefault(bar.begin if bar.step is None else bar.step, bar)
        starts = [(bar.begin, bar.end) for bar in by_step.values()]
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
            channel = _channel(event.get("of"))
            bars.append(Bar(node.node, name, event.get("step"), begin, end, channel))
        if not any(event.get("name") in ("step", "compute") for event in node.events):
            bars += _steps(node.node, node.columns)
    return bars


def _traced(folder: Path) -> list[Bar]:
    """Reads events from traces in a folder; none if there are none, or too many for a page."""
    try:
        if sum(path.stat().st_size for path in folder.glob("node-*.jsonl")) > _MOST_BYTES:
            return []
        nodes = traces.read(folder).nodes
    except (traces.TraceError, OSError):  # a file that cannot be read is among the damaged rows
        return []
    return [
        Bar(node.node, x.name, x.step, x.begin_seconds, x.end_seconds, _channel(x.of))
        for node in nodes
        for x in node.events
    ]


def _channel(of: object) -> str:
    """Returns the channel in ``"channel.ticket"``, the exchange that an event belongs to."""
    return str(of or "").partition(".")[0]


def _steps(node: int, columns: dict[str, Any]) -> list[Bar]:
    """Returns steps as the loop saw them: from one row to the next."""
    steps, seconds = columns["step"].tolist(), columns["seconds"].tolist()
    return [
        Bar(node, "step", int(step) - 1, begin, end)
        for step, begin, end in zip(steps[1:], seconds, seconds[1:], strict=False)
    ]
