"""The tables of the page, and their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ._html import Element, element, short, table
from ._joined import Node
from ._rows import Mark
from ._runs import Run, counted
from ._series import of_run

_MOST_ROWS = 200


def summary_table(runs: Sequence[Run]) -> Element:
    """Makes a table of the runs' results, with a column for each run."""
    rows: list[tuple[str, Callable[[Run], str]]] = [
        ("nodes", lambda run: f"{_count(run)}, engine {_header(run).get('engine', '?')}"),
        ("steps", lambda run: str(run.steps)),
        ("seconds", lambda run: f"{seconds_of(run):.1f}"),
        ("steps per second, without the first", lambda run: short(rate_of(run))),
    ]
    names = dict.fromkeys(name for run in runs for node in run.nodes for name in node.scalars)
    for name in names:
        rows.append((f"{name}, at the end", lambda run, name=name: at_end(run, name)))
        if any(_not_finite(run, name).size for run in runs):
            rows.append((f"{name}, not finite", lambda run, name=name: not_finite(run, name)))
    rows += [
        ("exchange time hidden", hidden_of),
        ("seconds hidden, mean of nodes", lambda run: f"{mean_of(run, hidden_seconds):.2f}"),
        (
            "seconds exposed or blocking, mean of nodes",
            lambda run: f"{mean_of(run, exposed_seconds):.2f}",
        ),
        ("bytes sent by a node", lambda run: f"{mean_of(run, bytes_sent):,.0f}"),
        ("checkpoints", lambda run: str(len(run.saved_steps))),
        ("faults", lambda run: str(len(_marks(run, "fault")))),
        ("state", state_of),
        ("rows left out as damaged", lambda run: str(len(run.damaged))),
    ]
    head = ["", *(run.name for run in runs)]
    return table("Runs", head, [[name, *(value(run) for run in runs)] for name, value in rows])


def nodes_table(run: Run) -> Element:
    """Makes a table with a row for each node."""
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
                str(node.steps),
                f"{node.totals['seconds']:.1f}",
                f"{node.totals['exchanges']:.0f}",
                f"{node.totals['blocking_means']:.0f}",
                f"{hidden_seconds(node):.2f}",
                f"{exposed_seconds(node):.2f}",
                f"{node.totals['bytes_sent']:,.0f}",
                *map(str, kinds),
                _state(node),
            ]
        )
    return table(f"Nodes of {run.name}", head, rows)


def marks_tables(runs: Sequence[Run]) -> list[Element]:
    """Makes tables of all checkpoints and faults, in order of time."""
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
        found.append(table(caption, ["seconds", "what", "node", "step", ""], cells))
    return found


def about(run: Run) -> Element:
    """Makes a folded list of settings, versions and damaged rows."""
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
        element("p", f"Left out: {counted(len(run.damaged), 'row')}.") if run.damaged else None,
        damaged if run.damaged else None,
        class_="wide",
    )


def seconds_of(run: Run) -> float:
    """Returns seconds from the first start to the last row."""
    return max(node.totals["seconds"] for node in run.nodes)


def rate_of(run: Run) -> float:
    """Returns steps per second, from the first row to the last of the first node."""
    node = run.nodes[0]
    steps, seconds = node.columns["step"], node.columns["seconds"]
    if steps.size < 2 or seconds[-1] <= seconds[0]:
        return float("nan")
    return float((steps[-1] - steps[0]) / (seconds[-1] - seconds[0]))


def at_end(run: Run, name: str) -> str:
    """Returns the last number; if there are many, the mean of the last twentieth."""
    _, values = of_run(run, name, "step")
    if not values.size:
        return "–"
    mean = float(np.mean(values[-max(values.size // 20, 1) :]))
    return short(mean) if np.isfinite(mean) else "not finite"


def not_finite(run: Run, name: str) -> str:
    """Returns the number of steps with NaN or infinity on any node, and the first of them."""
    steps = _not_finite(run, name)
    if not steps.size:
        return "0 steps"
    return f"{steps.size} of {counted(run.steps, 'step')}, the first {steps.min():.0f}"


def _not_finite(run: Run, name: str) -> np.ndarray:
    steps, values = of_run(run, name, "step")
    return steps[np.isinf(values)]


def hidden_seconds(node: Node) -> float:
    """Returns the exchange time during which the node computed."""
    return max(node.totals["exchange_seconds"] - node.totals["lost_seconds"], 0.0)


def exposed_seconds(node: Node) -> float:
    """Returns the time that the node was blocked: lost to exchanges, and in blocking means."""
    return node.totals["lost_seconds"] + node.totals["blocking_seconds"]


def bytes_sent(node: Node) -> float:
    """Returns the bytes that the node sent."""
    return node.totals["bytes_sent"]


def hidden_of(run: Run) -> str:
    """Returns ``1 - lost / exchange``, as `jdaso.Stats.hidden_share`."""
    exchange = sum(node.totals["exchange_seconds"] for node in run.nodes)
    lost = sum(node.totals["lost_seconds"] for node in run.nodes)
    return f"{100 * min(max(1 - lost / exchange, 0), 1):.1f} %" if exchange > 0 else "–"


def mean_of(run: Run, value: Callable[[Node], float]) -> float:
    """Returns the mean over the nodes."""
    return float(np.mean([value(node) for node in run.nodes]))


def _state(node: Node) -> str:
    if node.stopped:
        return "stopped, to be continued"
    return "ended" if node.ended else "running, or cut off"


def state_of(run: Run) -> str:
    """Returns whether all nodes reached their end."""
    missing = [node.node for node in run.nodes if not (node.ended or node.stopped)]
    if not missing:
        return max(map(_state, run.nodes))  # "stopped" before "ended"
    return f"running, or cut off: node {', '.join(map(str, missing[:8]))}"


def _header(run: Run) -> dict:
    return run.nodes[0].header


def _count(run: Run) -> str:
    known = _header(run).get("num_nodes", len(run.nodes))
    if len(run.nodes) > known:  # it was started again with fewer
        return f"{known} at the end, {len(run.nodes)} in all"
    return str(known) if known == len(run.nodes) else f"{known}, of which {len(run.nodes)} recorded"


def _marks(run: Run, kind: str) -> list[Mark]:
    return [mark for node in run.nodes for mark in node.marks if mark.kind == kind]
