"""Writes ``docs/benchmarks.md`` and its pictures from the results in `harness.OUT`."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.lib import harness, marks

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = DOCS / "_static" / "benchmarks"

INTRO = Path(__file__).with_suffix(".md")
COLUMNS = {
    "M": "M",
    "hosts": "hosts",
    "ranks a host": "ranks a host",
    "Gbit/s": "Gbit/s",
    "step": "step ms",
    "B": "B",
    "S": "S",
    "method": "method",
    "ms": "ms",
    "of bare": "of bare",
    "of instant": "of instant",
    "exchange ms": "exchange ms",
    "lost ms": "held up ms",
    "hidden": "hidden",
    "of passes": "of passes",
    "of link": "link",
    "of allowed": "allowed",
    "MB a step": "MB",
    "MB of a rank": "MB of a rank",
    "of model": "of model",
    "peak MB": "peak MB",
    "copy GB/s": "copy GB/s",
    "model ms": "model ms",
    "model off": "model off",
}

SECTIONS = {
    "key": (
        "The key case: 25.6 M parameters, paced steps of 200 ms, 1 Gbit/s",
        "As many parameters as ResNet-50. A paced step waits for its time without using a core, "
        "as on an accelerator. Engine mpi4py.",
        (),
    ),
    "mpi4jax": (
        "The same with engine mpi4jax",
        "This engine's calls block a thread, one chunk after another. The model does not cover it.",
        ("model ms", "model off", "copy GB/s"),
    ),
    "rare": ("The same with B = S = 8", "All methods in the same processes.", ("peak MB",)),
    "grid": (
        "Hosts, rates and step times",
        "25.6 M parameters, B = S = 4, bfloat16, paced.",
        ("hidden", "MB a step", "peak MB", "lost ms"),
    ),
    "eight": (
        "Eight hosts",
        "12.8 M parameters, paced: with 25.6 M and a bfloat16 wire, eight processes need 3.1 GB "
        "each, more than 24 GiB together. Eight hosts share two cores; *instant*, which sends "
        "nothing, shows the cost of this sharing alone.",
        ("hidden", "MB a step", "lost ms"),
    ),
    "large": (
        "Larger models",
        "As many parameters as GPT-2 (124 M) and VGG-16 (138 M). More hosts do not fit this "
        "machine's memory.",
        ("peak MB",),
    ),
    "ranks_per_node": (
        "Nodes of several ranks",
        "6.4 M parameters, divided over the four devices of a host (FSDP), which one rank drives "
        "or two do, as one JAX world. *of model* is what a rank sends, over what a node of one "
        "rank has to send.",
        ("peak MB",),
    ),
    "links": (
        "Exchanges alone",
        "Float32 numbers, with no computation beside the exchange; all hosts encode, sum and "
        "decode on the same 2 cores. *of link* is the time that a ring needs at the link's "
        "nominal rate, divided by the measured time.",
        (),
    ),
    "demo": (
        "Real compute: the demo's network",
        "Fashion-MNIST, 64 images per host and step. Computation and exchanges share the "
        "processor's cores. PyTorch's network has the same shapes.",
        ("model ms", "model off", "step", "peak MB", "copy GB/s", "of passes"),
    ),
    "text": (
        "Real compute: a character transformer",
        "The Jargon File, 64 texts per host and step. The exchanges are small: links let a part of "
        "them through at once (see An emulated cluster).",
        ("model ms", "model off", "step", "peak MB", "copy GB/s", "of passes"),
    ),
    "time_to_accuracy": (
        "Time to an accuracy",
        "The demo's network on Fashion-MNIST, trained to the end. The accuracy on the test "
        "images is computed after the clock has stopped.",
        (),
    ),
    "accuracy": (
        "Accuracy after equal epochs",
        "Accuracy in percent; *behind* is the distance below synchronous training in points, "
        "the mean over seeds.",
        (),
    ),
    "accuracy_text": (
        "Accuracy after equal epochs: text",
        "Share of characters predicted correctly.",
        (),
    ),
    "many_nodes": (
        "Accuracy with 64 nodes",
        "Virtual nodes (engine simulated): 16 images per node and step, one seed. SGD with "
        "momentum at a learning rate of 0.1. At 0.2, synchronous training ends half a point "
        "higher, and 64 nodes diverge.",
        (),
    ),
    "more_nodes": ("Accuracy with 8 to 128 nodes", "As above.", ()),
    "many_nodes_adamw": ("Accuracy with 64 nodes and AdamW", "As above, at a rate of 0.006.", ()),
    "settings": (
        "Accuracy after equal epochs: all settings",
        "Real nodes; `benchmarks/accuracy/accuracy.py` defines each setting.",
        (),
    ),
    "settings_text": (
        "Accuracy after equal epochs: all settings, text",
        "Share of characters predicted correctly, on real nodes.",
        (),
    ),
    "shipped": (
        "Studies",
        "Claims of the studies that ship with jdaso (see Does my network matter?), in their short "
        "forms: two launches of each cell, so that only large effects are sure.",
        (),
    ),
    "shipped_cells": ("Studies: each cell", "*low* and *high* enclose 90 % of iterations.", ()),
    "step_memory": ("Memory that a step needs for jdaso, in copies of the parameters", "", ()),
    "pipelines": (
        "Pipelines: how near schedules come to their bound",
        "K hosts with one stage each, or V stages each if interleaved; M micro-batches. *of "
        "bound* is the least time of the schedule, if messages and optimizer cost nothing, "
        "divided by the time of a step. *busy* is the share of a step in which a host computes.",
        (),
    ),
    "hybrid": (
        "Pipelines and replicas beside data parallelism",
        "Four hosts, with the same samples and the same computation per step; hybrid has 2 "
        "partitions and 2 replicas.",
        (),
    ),
    "deep": (
        "Very deep models",
        "ResNets of bottleneck blocks, each block written out, on K nodes of this machine. "
        "*plan s* is the time to trace and cut the model, *first step s* the time from the "
        "start of the program to the end of its first step.",
        ("loss", "fits"),
    ),
}


def write() -> None:
    """The whole page; sections whose results are not there are left out."""
    found = {name: _load(name) for name in SECTIONS}
    found = {name: result for name, result in found.items() if result is not None}
    if not found:
        raise SystemExit(f"No results in {harness.OUT}: run a benchmark first.")
    machine = next(iter(found.values()))["machine"]
    text = [INTRO.read_text().format(**machine)]
    text.append("## Goals\n\nThe goals, and the results.\n")
    text.append(marks.table({name: result["rows"] for name, result in found.items()}))
    if missing := [title for name, (title, *_) in SECTIONS.items() if name not in found]:
        text.append("Not measured this time: " + "; ".join(missing) + ".\n")
    for name, result in found.items():
        title, words, hidden = SECTIONS[name]
        text.append(f"## {title}\n\n{words}\n\n{_settings(result)}\n")
        if name == "key" and (PICTURES / "cycle.svg").exists():
            text.append("![One cycle](_static/benchmarks/cycle.svg)\n")
            text.append(f"One cycle of *{marks.JDASO}* on {result['rows'][-1]['hosts']} hosts.\n")
        if name == "grid":
            _draw_grid(result["rows"], PICTURES / "grid.svg")
            text.append("![Speed against hosts](_static/benchmarks/grid.svg)\n")
        text.append(_table(result["rows"], hidden))
        off = [abs(row["model off"]) for row in result["rows"] if "model off" in row]
        if off and name in marks.PACED:
            near = sum(x <= 0.15 for x in off)
            text.append(
                f"The model is within 15 % of the measurement in {near} of {len(off)} rows; the "
                f"farthest is {max(off):.0%} off.\n"
            )
    (DOCS / "benchmarks.md").write_text("\n".join(text))


def _load(name: str) -> dict | None:
    path = harness.OUT / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _settings(result: dict) -> str:
    words = [f"{key} {value}" for key, value in result["settings"].items()]
    return f"({', '.join([*words, 'commit ' + result['machine']['commit']])}.)"


def _table(rows: list[dict], hidden: tuple[str, ...]) -> str:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    if "of instant" in keys:  # of throughput and ranks_per_node
        keys = [key for key in COLUMNS if key in keys]
    keys = [
        key
        for key in keys
        if key not in hidden and (len(rows) == 1 or len({str(row.get(key)) for row in rows}) > 1)
    ]
    lines = [[COLUMNS.get(key, key) for key in keys], ["---"] * len(keys)]
    lines += [[_cell(key, row.get(key, "")) for key in keys] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(key: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if key == "model off":
        return f"{value:+.0%}"
    if key.startswith(("of ", "hidden")):
        return f"{value:.2f}"
    if abs(value) < 1e-3:
        return "0"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _draw_grid(rows: list[dict], path: Path) -> None:
    """Speed relative to no network against hosts, a panel a rate, for the middle step time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates = sorted({row["Gbit/s"] for row in rows})
    times = sorted({row["step"] for row in rows})
    middle = times[len(times) // 2]
    figure, panels = pyplot.subplots(1, len(rates), figsize=(9, 3), sharey=True, squeeze=False)
    for axes, rate in zip(panels[0], rates, strict=True):
        for method, style in (
            ("instant", "^:"),
            (marks.JDASO, "o-"),
            ("synchronous", "s--"),
        ):
            points = sorted(
                (row["hosts"], row["of bare"])
                for row in rows
                if (row["Gbit/s"], row["step"], row["method"]) == (rate, middle, method)
                and row["of bare"] != ""
            )
            axes.plot(*zip(*points, strict=True), style, label=method)
        axes.set_title(f"{rate:g} Gbit/s, steps of {middle:g} ms", fontsize="medium")
        axes.set_xlabel("hosts")
        axes.set_ylim(0, 1.05)
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("speed, 1 = bare")
    panels[0][-1].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    write()
