"""Charts of one run: its phases with B and S, and the time of its exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._axes import BOTTOM, TOP, Axes, Line, axes_of, lines_of
from ._charts import figure, frame, legend, line_chart, look, numbers, patch, path, svg, swatch
from ._html import Element, element
from ._runs import Node, Run
from ._series import BINS, Thinned, over_nodes, thin

BANDS = {"warm-up": "warmup", "cycling": "cycling", "cool-down": "cooldown", "blocking": "blocking"}


def phase_chart(run: Run) -> Element | None:
    """Charts phase, B and S over time, from the first node that recorded them; all are equal."""
    node = next((node for node in run.nodes if any(node.phases)), None)
    if node is None:
        return None
    seconds, data = node.columns["seconds"], []
    for style, (label, name) in enumerate((("B", "sync_every"), ("S", "delay"))):
        if (column := node.columns.get(name)) is not None:
            known = np.isfinite(column)
            data.append((label, style, stairs(seconds[known], column[known])))
    lines = [Line(label, style, x) for label, style, x in data if x.x.size]
    spans = phase_spans(node)
    end = float(seconds[-1])
    top = max([1.0, *(float(line.points.high.max()) for line in lines)])
    axes = Axes("seconds", "steps", (0.0, end or 1.0), (0.0, top * 1.08))
    title = f"Phase, B and S: {run.name}"
    said = ", ".join(f"{name} from {begin:.4g} to {stop:.4g} s" for name, begin, stop in spans)
    bands = [
        element(
            "rect",
            element("title", f"{name}, {begin:.4g} to {stop:.4g} s"),
            x=round(axes.at_x(begin), 1),
            y=TOP,
            width=round(max(axes.at_x(stop) - axes.at_x(begin), 0.5), 1),
            height=BOTTOM - TOP,
            class_=BANDS.get(name, "blocking"),
        )
        for name, begin, stop in spans
    ]
    drawn = [
        element("path", d=path(axes, x.points.x, x.points.mean), **look(x.style)) for x in lines
    ]
    names = dict.fromkeys(name for name, _, _ in spans)
    entries = [(name, patch(BANDS.get(name, "blocking"))) for name in names]
    entries += [(line.label, swatch(line.style)) for line in lines]
    return figure(
        title,
        svg(f"{title}. {said}.", [*bands, *frame(axes), *drawn]),
        legend(entries),
        numbers(title, axes, lines),
    )


def stairs(x: np.ndarray, y: np.ndarray) -> Thinned:
    """Returns steps of a number that stays until it changes; thinned if it changes too often."""
    if not x.size:
        return Thinned(x, y, y, y)
    changes = np.flatnonzero(np.diff(y)) + 1
    if changes.size > BINS:
        return thin(x, y)
    corners_x = np.concatenate([[x[0]], np.repeat(x[changes], 2), [x[-1]]])
    values = y[np.concatenate([[0], changes])]
    corners_y = np.repeat(values, 2)
    return Thinned(corners_x, corners_y, corners_y, corners_y)


def phase_spans(node: Node) -> list[tuple[str, float, float]]:
    """Returns name, begin and end in seconds of each stretch of a phase."""
    spans: list[tuple[str, float, float]] = []
    begin = 0.0
    for name, seconds in zip(node.phases, node.columns["seconds"].tolist(), strict=True):
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
        x = columns["seconds"]
        made.append((run, lines_of([("hidden", 2, x, hidden), ("exposed", 1, x, exposed)])))
    top = max((float(line.points.high.max()) for _, lines in made for line in lines), default=1.0)
    return [
        line_chart(
            f"Communication, hidden and exposed: {run.name}",
            axes_of(lines, "seconds", "seconds, total")._replace(y=(0.0, top * 1.04 or 1.0)),
            lines,
        )
        for run, lines in made
        if lines
    ]
