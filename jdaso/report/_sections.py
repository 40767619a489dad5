"""The sections of the page, in the order of a reader's questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ._charts import Sign, line_chart, lines_of, new_plot, scalar_plot
from ._cycle import cycle_chart
from ._html import Element, element
from ._phases import phase_chart, time_charts
from ._runs import Run
from ._series import of_run
from ._tables import about, marks_tables, nodes_table, summary_table

_MOST_SIGNS = 80  # drawn for each run and kind


def sections_of(runs: Sequence[Run]) -> list[tuple[str, str, Sequence[Element]]]:
    """Returns key, name and content of each section that has something to show."""
    sections = [
        ("summary", "Summary", [wide(summary_table(runs))]),
        *((f"scalar-{k}", name, charts) for k, (name, charts) in enumerate(scalar_charts(runs))),
        ("phases", "Phases", grid(_there(phase_chart(run) for run in runs))),
        ("time", "Communication", grid([*time_charts(runs), *bytes_chart(runs)])),
        ("cycle", "Timeline of a cycle", _there(cycle_chart(run) for run in runs)),
        ("nodes", "Nodes", [wide(nodes_table(run)) for run in runs]),
        ("marks", "Checkpoints and faults", [wide(marks) for marks in marks_tables(runs)]),
        ("about", "Settings and machine", [about(run) for run in runs]),
    ]
    return [section for section in sections if section[2]]


def scalar_charts(runs: Sequence[Run]) -> list[tuple[str, list[Element]]]:
    """Makes charts of each number that the programs gave: against steps, and against seconds."""
    names = dict.fromkeys(name for run in runs for node in run.nodes for name in node.scalars)
    first = [name for name in ("loss", "accuracy") if name in names]
    found = []
    for name in [*first, *sorted(names.keys() - first)]:
        charts = []
        for against in ("step", "seconds"):
            data = [(run.name, k, *of_run(run, name, against)) for k, run in enumerate(runs)]
            if lines := lines_of(data):
                label = "steps" if against == "step" else against
                title = f"{name[:1].upper()}{name[1:]} against {label}"
                signs = [sign for run in runs for sign in _signs(run, against)]
                charts.append(line_chart(title, scalar_plot(label, name, lines), lines, signs))
        if charts:
            found.append((f"{name[:1].upper()}{name[1:]}", grid(charts)))
    return found


def bytes_chart(runs: Sequence[Run]) -> list[Element]:
    """Charts the total bytes that a node sent, averaged over nodes."""
    data = []
    for k, run in enumerate(runs):
        steps, sent = of_run(run, "bytes_sent", "step")
        data.append((run.name, k, steps, sent / 1e6))
    lines = lines_of(data)
    if not lines:
        return []
    top = max(float(line.points.high.max()) for line in lines)
    plot = new_plot("steps", "megabytes, total", y_range=(0, 1.04 * top or 1.0))
    return [line_chart("Bytes sent by a node", plot, lines)]


def _signs(run: Run, against: str) -> list[Sign]:
    """Returns checkpoints of the first node, as all nodes make them together; faults of all."""
    found, saved = [], run.saved_steps
    for kind, nodes in (("checkpoint", run.nodes[:1]), ("fault", run.nodes)):
        some = []
        for mark in (mark for node in nodes for mark in node.marks if mark.kind == kind):
            if kind == "checkpoint" and mark.step is not None and mark.step not in saved:
                continue
            x = mark.seconds if against == "seconds" else mark.step
            if x is not None:
                at = "" if mark.step is None else f" at step {mark.step}"
                text = f"{run.name}: {kind}{at}, node {mark.node} {mark.text}".strip()
                some.append(Sign(kind, float(x), run.name, text))
        found += some[:: len(some) // _MOST_SIGNS + 1]
    return found


def _there(charts: Iterable[Element | None]) -> list[Element]:
    return [chart for chart in charts if chart is not None]


def grid(charts: Sequence[Element]) -> list[Element]:
    """Makes a grid of charts, as many side by side as fit."""
    return [element("div", charts, class_="charts")] if charts else []


def wide(child: Element) -> Element:
    """Makes a card for a table."""
    return element("div", child, class_="wide")
