"""Charts of one run: its phases with B and S, and the time of its exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._charts import (
    ChartLine,
    add_hover,
    described,
    draw_lines,
    figure,
    line_chart,
    lines_of,
    new_plot,
    numbers,
    patch,
    swatch,
)
from ._html import Element, short, table
from ._joined import Node
from ._runs import Run
from ._series import BINS, Thinned, over_nodes, thin

COLOURS = {"warm-up": "#e3a008", "cycling": "#16936b", "cool-down": "#4f7be0"}
BLOCKING = "#7c848e"
OPACITY = 0.12


def phase_chart(run: Run) -> Element | None:
    """Charts phase, B and S over time, from the first node that recorded them; all are equal."""
    node = next((node for node in run.nodes if any(node.phases)), None)
    if node is None:
        return None
    lines, spans = [], phase_spans(node)
    for style, (label, name) in enumerate((("B", "sync_every"), ("S", "delay"))):
        column = node.column(name)
        if (known := np.isfinite(column)).any():
            seconds = node.columns["seconds"][known]
            order = np.argsort(seconds, kind="stable")
            points = stairs(seconds[order], column[known][order])
            lines.append(ChartLine(label, style, points, stairs=True))
    top = max([1.0, *(float(line.points.high.max()) for line in lines)])
    plot = new_plot("seconds", "steps", y_range=(0, 1.08 * top))
    drawn, switches = [], []
    for name in dict.fromkeys(name for name, _, _ in spans):
        begins, ends = zip(*[span[1:] for span in spans if span[0] == name], strict=True)
        colour = COLOURS.get(name, BLOCKING)
        look = {"fill_color": colour, "fill_alpha": OPACITY, "line_color": None, "name": name}
        drawn.append(plot.vstrip(list(begins), list(ends), **look))
        switches.append((name, patch(colour, stroke_width=10, stroke_opacity=OPACITY)))
    add_hover(plot, drawn, [("", "$name"), ("from", "@x0 s"), ("to", "@x1 s")])
    draw_lines(plot, lines)
    switches += [(line.label, swatch(line.style)) for line in lines]
    title, rows = f"Phase, B and S: {run.name}", [[n, short(a), short(b)] for n, a, b in spans]
    tables = [table(f"Phases of {run.name}", ["phase", "from, seconds", "to"], rows)]
    words = ", ".join(f"{name} from {begin} to {end} s" for name, begin, end in rows)
    words = f"{words}. {described(lines)}"
    return figure(title, plot, words, switches, tables + numbers(title, plot, lines))


def stairs(x: np.ndarray, y: np.ndarray) -> Thinned:
    """Returns the points at which a number changes, and the last; thinned if these are many."""
    kept = np.union1d(np.flatnonzero(np.diff(y, prepend=np.nan)), x.size - 1)
    if kept.size > BINS:
        return thin(x, y)
    return Thinned(x[kept], y[kept], y[kept], y[kept])


def phase_spans(node: Node) -> list[tuple[str, float, float]]:
    """Returns name, start and end in seconds of each stretch of a phase."""
    spans: list[tuple[str, float, float]] = []
    begin = 0.0
    rows = zip(node.columns["seconds"].tolist(), node.phases, strict=True)
    for seconds, name in sorted(rows, key=lambda row: row[0]):
        if spans and spans[-1][0] == name:
            spans[-1] = (name, spans[-1][1], seconds)
        else:
            spans.append((name, begin, seconds))
        begin = seconds
    return [span for span in spans if span[0]]


def time_charts(runs: Sequence[Run]) -> list[Element]:
    """Charts running totals of hidden and exposed communication; one scale for all runs."""
    made = []
    for run in runs:
        names = ("seconds", "exchange_seconds", "lost_seconds", "blocking_seconds")
        columns = over_nodes(run, names)
        hidden = np.maximum(columns["exchange_seconds"] - columns["lost_seconds"], 0.0)
        exposed = columns["lost_seconds"] + columns["blocking_seconds"]
        order = np.argsort(columns["seconds"], kind="stable")
        x = columns["seconds"][order]
        data = ("hidden", 2, x, hidden[order]), ("exposed", 1, x, exposed[order])
        made.append((run, lines_of(data)))
    top = max((float(line.points.high.max()) for _, lines in made for line in lines), default=1.0)
    return [
        line_chart(
            f"Communication, hidden and exposed: {run.name}",
            new_plot("seconds", "seconds, total", y_range=(0, top * 1.04 or 1.0)),
            lines,
        )
        for run, lines in made
        if lines
    ]
