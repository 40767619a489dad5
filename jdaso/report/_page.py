"""The page: its sections, in the order of a reader's questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ._axes import axes_of, lines_of, scalar_axes
from ._charts import Sign, line_chart
from ._cycle import cycle_chart
from ._html import Element, element, text_of
from ._phases import phase_chart, time_charts
from ._runs import ReportError, Run, counted
from ._series import of_run
from ._tables import about, marks_tables, nodes_table, summary_table

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def make_page(runs: Sequence[Run], title: str = "jdaso report") -> str:
    """Makes one HTML page about one or several runs, side by side.

    The page is self-contained: it loads nothing and runs no script, and its policy forbids both.

    Args:
        runs: from `read_run`.
        title: of the page.

    Raises:
        ReportError: there are no runs.
    """
    if not runs:
        raise ReportError("There are no runs to report on.")
    runs = with_names(runs)
    sections = [
        ("summary", "Summary", [_wide(summary_table(runs))]),
        *((f"scalar-{k}", name, charts) for k, (name, charts) in enumerate(scalar_charts(runs))),
        ("phases", "Phases", _grid([chart for run in runs if (chart := phase_chart(run))])),
        ("time", "Communication", _grid([*time_charts(runs), *bytes_chart(runs)])),
        ("cycle", "Timeline of a cycle", [c for run in runs if (c := cycle_chart(run))]),
        ("nodes", "Nodes", [_wide(nodes_table(run)) for run in runs]),
        ("marks", "Checkpoints and faults", [_wide(marks) for marks in marks_tables(runs)]),
        ("about", "Settings and machine", [about(run) for run in runs]),
    ]
    sections = [(key, name, content) for key, name, content in sections if content]
    body = element(
        "body",
        element("a", "Skip to the summary", href="#summary", class_="skip"),
        element("header", element("h1", title), element("p", _told(runs)), _contents(sections)),
        element("main", [_section(*section) for section in sections]),
        element("footer", element("p", "Made by python -m jdaso report.")),
    )
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", style),
    )
    return text_of(element("html", head, body, lang="en"))


def with_names(runs: Sequence[Run]) -> list[Run]:
    """Adds a number to the names of runs that share a name."""
    names = [run.name for run in runs]
    for k, run in enumerate(runs):
        if names.count(names[k]) > 1:
            run.name = f"{names[k]} ({k + 1})"
    return list(runs)


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
                signs = [sign for k, run in enumerate(runs) for sign in _signs(run, k, against)]
                charts.append(line_chart(title, scalar_axes(lines, label, name), lines, signs))
        if charts:
            found.append((f"{name[:1].upper()}{name[1:]}", _grid(charts)))
    return found


def bytes_chart(runs: Sequence[Run]) -> list[Element]:
    """Charts the total bytes that a node sent, averaged over nodes."""
    data = [(run.name, k, *of_run(run, "bytes_sent", "step")) for k, run in enumerate(runs)]
    lines = lines_of(data)
    if not lines:
        return []
    axes = axes_of(lines, "steps", "bytes, total", from_zero=True)
    return [line_chart("Bytes sent by a node", axes, lines)]


def _signs(run: Run, style: int, against: str) -> list[Sign]:
    """Returns checkpoints of the first node, as all nodes make them together; faults of all."""
    found = []
    for node in run.nodes:
        for mark in node.marks:
            x = mark.seconds if against == "seconds" else mark.step
            if x is not None and (mark.kind == "fault" or node is run.nodes[0]):
                at = "" if mark.step is None else f" at step {mark.step}"
                title = f"{run.name}: {mark.kind}{at}, node {mark.node} {mark.text}".strip()
                found.append(Sign(mark.kind, float(x), style, title))
    return found


def _told(runs: Sequence[Run]) -> str:
    damaged = sum(len(run.damaged) for run in runs)
    names = ", ".join(run.name for run in runs)
    said = f"{counted(len(runs), 'run')}: {names}."
    return said + (f" Left out: {counted(damaged, 'damaged row')}." if damaged else "")


def _contents(sections: Sequence[tuple[str, str, Sequence[Element]]]) -> Element:
    links = [element("li", element("a", name, href=f"#{key}")) for key, name, _ in sections]
    return element("nav", element("ul", links), aria_label="Sections")


def _section(key: str, name: str, content: Sequence[Element]) -> Element:
    return element(
        "section", element("h2", name, id=f"{key}-title"), content, id=key,
        aria_labelledby=f"{key}-title",
    )  # fmt: skip


def _grid(charts: Sequence[Element]) -> list[Element]:
    return [element("div", charts, class_="charts")] if charts else []


def _wide(child: Element) -> Element:
    return element("div", child, class_="wide")
