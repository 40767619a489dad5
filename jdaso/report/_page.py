"""The page: sections in the order in which a reader asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ._charts import Sign, axes_of, line_chart, lines_of, scalar_axes, short, table
from ._cycle import cycle_chart
from ._html import Element, element, text_of
from ._phases import phase_chart, time_charts
from ._runs import Mark, Node, ReportError, Run
from ._series import of_run

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
_MOST_ROWS = 200


def make_page(runs: Sequence[Run], title: str = "jdaso report") -> str:
    """One HTML page about one or several runs, side by side.

    Everything is in it: it loads nothing, runs no script, and a policy in it forbids both.

    Args:
        runs: as `read_run` gives them.
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
        ("marks", "Checkpoints and faults", marks(runs)),
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
    """Runs of the same name get their number with it."""
    names = [run.name for run in runs]
    for k, run in enumerate(runs):
        if names.count(names[k]) > 1:
            run.name = f"{names[k]} ({k + 1})"
    return list(runs)


def scalar_charts(runs: Sequence[Run]) -> list[tuple[str, list[Element]]]:
    """For each number that the programs gave: against steps, and against seconds."""
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
    """What a node handed to the network, in all, the nodes' mean."""
    data = [(run.name, k, *of_run(run, "bytes_sent", "step")) for k, run in enumerate(runs)]
    lines = lines_of(data)
    if not lines:
        return []
    axes = axes_of(lines, "steps", "bytes, total", from_zero=True)
    return [line_chart("Bytes sent by a node", axes, lines)]


def summary_table(runs: Sequence[Run]) -> Element:
    """What came of each run; a column for each."""
    rows: list[tuple[str, Callable[[Run], str]]] = [
        ("nodes", lambda run: f"{_count(run)}, engine {_header(run).get('engine', '?')}"),
        ("steps", lambda run: f"{max(node.last('step') for node in run.nodes):.0f}"),
        ("seconds", lambda run: f"{seconds_of(run):.1f}"),
        ("steps per second", lambda run: short(rate_of(run))),
    ]
    names = dict.fromkeys(name for run in runs for node in run.nodes for name in node.scalars)
    rows += [(f"{name}, at the end", lambda run, name=name: at_end(run, name)) for name in names]
    rows += [
        ("exchange time hidden", hidden_of),
        ("seconds hidden, mean of nodes", lambda run: f"{mean_of(run, hidden_seconds):.2f}"),
        ("seconds exposed, mean of nodes", lambda run: f"{mean_of(run, exposed_seconds):.2f}"),
        ("bytes sent by a node", lambda run: f"{mean_of(run, bytes_sent):,.0f}"),
        ("checkpoints", lambda run: str(len({m.step for m in _marks(run, "checkpoint")}))),
        ("faults", lambda run: str(len(_marks(run, "fault")))),
        ("state", state_of),
        ("rows left out as damaged", lambda run: str(len(run.damaged))),
    ]
    head = ["", *(run.name for run in runs)]
    return table("Runs", head, [[name, *(value(run) for run in runs)] for name, value in rows])


def nodes_table(run: Run) -> Element:
    """A row for each node."""
    head = ["node", "host", "devices", "starts", "steps", "seconds", "exchanges", "means"]
    head += ["hidden s", "exposed s", "bytes sent", "checkpoints", "faults", "state"]
    rows = []
    for node in run.nodes:
        devices = node.header.get("devices") or []
        kinds = [sum(m.kind == kind for m in node.marks) for kind in ("checkpoint", "fault")]
        rows.append(
            [
                str(node.node),
                str(node.header.get("host", "")),
                str(len(devices)),
                str(node.starts),
                f"{node.last('step'):.0f}",
                f"{node.last('seconds'):.1f}",
                f"{node.last('exchanges'):.0f}",
                f"{node.last('blocking_means'):.0f}",
                f"{hidden_seconds(node):.2f}",
                f"{exposed_seconds(node):.2f}",
                f"{node.last('bytes_sent'):,.0f}",
                *map(str, kinds),
                "ended" if node.ended else "running, or cut off",
            ]
        )
    return table(f"Nodes of {run.name}", head, rows)


def marks(runs: Sequence[Run]) -> list[Element]:
    """All checkpoints and faults in the order of time."""
    found = []
    for run in runs:
        rows = sorted((mark for node in run.nodes for mark in node.marks), key=lambda m: m.seconds)
        if not rows:
            continue
        caption = f"Checkpoints and faults of {run.name}"
        if len(rows) > _MOST_ROWS:
            faults = [mark for mark in rows if mark.kind == "fault"][-_MOST_ROWS:]
            rest = [mark for mark in rows if mark.kind != "fault"]
            rest = rest[max(len(rest) + len(faults) - _MOST_ROWS, 0) :]
            caption += f", the last {len(faults) + len(rest)} of {len(rows)}"
            rows = sorted([*faults, *rest], key=lambda m: m.seconds)
        known = lambda step: "–" if step is None else str(step)  # noqa: E731
        cells = [
            [f"{mark.seconds:.1f}", mark.kind, str(mark.node), known(mark.step), mark.text]
            for mark in rows
        ]
        found.append(_wide(table(caption, ["seconds", "what", "node", "step", ""], cells)))
    return found


def about(run: Run) -> Element:
    """Settings, versions and damaged rows, folded."""
    header = _header(run)
    rows = [["folder", str(run.folder)]]
    rows += [[str(name), str(value)] for name, value in (header.get("versions") or {}).items()]
    for name, value in (header.get("settings") or {}).items():
        if isinstance(value, dict):
            rows += [[f"{name}: {key}", str(what)] for key, what in value.items()]
        else:
            rows.append([str(name), str(value)])
    damaged = element("ul", [element("li", text) for text in run.damaged[:_MOST_ROWS]])
    return element(
        "details",
        element("summary", f"{run.name}: settings, versions, damaged rows"),
        table(f"Settings of {run.name}", ["setting", "value"], rows),
        element("p", f"{len(run.damaged)} rows were left out:") if run.damaged else None,
        damaged if run.damaged else None,
        class_="wide",
    )


def seconds_of(run: Run) -> float:
    """From the first start to the last row."""
    return max(node.last("seconds") for node in run.nodes)


def rate_of(run: Run) -> float:
    """Steps a second, from the first row to the last of the first node."""
    node = run.nodes[0]
    steps, seconds = node.columns["step"], node.columns["seconds"]
    if steps.size < 2 or seconds[-1] <= seconds[0]:
        return float("nan")
    return float((steps[-1] - steps[0]) / (seconds[-1] - seconds[0]))


def at_end(run: Run, name: str) -> str:
    """The last number; where there are many, the mean of the last twentieth."""
    _, values = of_run(run, name, "step")
    return short(float(np.mean(values[-max(values.size // 20, 1) :]))) if values.size else "–"


def hidden_seconds(node: Node) -> float:
    """Exchange time in which the node computed."""
    return max(node.last("exchange_seconds") - node.last("lost_seconds"), 0.0)


def exposed_seconds(node: Node) -> float:
    """Time in which the node stood still for others: lost to exchanges, and in blocking means."""
    return node.last("lost_seconds") + node.last("blocking_seconds")


def bytes_sent(node: Node) -> float:
    """What the node handed to the network."""
    return node.last("bytes_sent")


def hidden_of(run: Run) -> str:
    """``1 - lost / exchange``, as `jdaso.Stats.hidden_share`."""
    exchange = sum(node.last("exchange_seconds") for node in run.nodes)
    lost = sum(node.last("lost_seconds") for node in run.nodes)
    return f"{100 * min(max(1 - lost / exchange, 0), 1):.1f} %" if exchange > 0 else "–"


def mean_of(run: Run, value: Callable[[Node], float]) -> float:
    """The mean over the nodes."""
    return float(np.mean([value(node) for node in run.nodes]))


def state_of(run: Run) -> str:
    """Whether all nodes came to their end."""
    missing = [node.node for node in run.nodes if not node.ended]
    if not missing:
        return "ended"
    return f"running, or cut off: node {', '.join(map(str, missing[:8]))}"


def _header(run: Run) -> dict:
    return run.nodes[0].header


def _count(run: Run) -> str:
    known = _header(run).get("num_nodes", len(run.nodes))
    return str(known) if known == len(run.nodes) else f"{known}, of which {len(run.nodes)} recorded"


def _marks(run: Run, kind: str) -> list[Mark]:
    return [mark for node in run.nodes for mark in node.marks if mark.kind == kind]


def _signs(run: Run, style: int, against: str) -> list[Sign]:
    """Checkpoints of the first node, which all nodes make together; faults of all."""
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
    said = f"{len(runs)} {'runs' if len(runs) > 1 else 'run'}: {names}."
    return said + (f" {damaged} damaged rows were left out." if damaged else "")


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
