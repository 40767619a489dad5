"""The goals of the figures beside the figures themselves: the first table of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

Rows = list[dict[str, Any]]
JDASO = "daso bfloat16 corrected"
PACED = ("key", "rare", "grid", "eight", "large")
SYNCHRONOUS = ("synchronous", "jax gloo", "torch ddp", "horovod")


class Mark(NamedTuple):
    """One thing that is wanted, and what was measured of it."""

    what: str
    wanted: str
    measured: str
    held: bool


def marks(found: dict[str, Rows]) -> Iterator[Mark]:
    """Every mark whose figures are there. `found` has the rows of each benchmark by its name."""
    key = found.get("key", [])
    paced = [row for name in PACED for row in found.get(name, [])]
    cycling = [row for row in paced if row["method"].startswith("daso")]
    yield from least(
        "daso relative to *instant*, where exchanges fit behind the steps",
        0.97,
        (row["of instant"] for row in cycling if row["fits"] and row["of instant"] != ""),
    )
    for n in (2, 4):
        yield from least(
            f"daso relative to *bare*, the key case, {n} hosts",
            0.92,
            (row["of bare"] for row in key if (row["method"], row["hosts"]) == (JDASO, n)),
        )
    yield from least(
        "daso relative to what the link allows, where exchanges do not fit",
        0.9,
        (row["of allowed"] for row in cycling if not row["fits"]),
    )
    yield from most(
        "cost of a start and a merge, relative to a plain copy of the fewest bytes",
        1.5,
        (row["of passes"] for row in cycling if row["fits"] and "of passes" in row),
    )
    yield from least(
        "the key case, 4 hosts: daso's steps per second, relative to each synchronous peer",
        5.0,
        times_faster(row for row in key if row["hosts"] == 4),
    )
    real = (row for row in found.get("demo", []) if (row["hosts"], row["Gbit/s"]) == (4, 0.1))
    yield from least(
        "real compute, 4 hosts, 100 Mbit/s: images per second, relative to each synchronous peer",
        2.0,
        times_faster(real),
    )
    yield from least(
        "the same: speed-up of the time to 90 % of synchronous training's accuracy",
        1.8,
        (r["times shorter"] for r in found.get("time_to_accuracy", []) if r["method"] == "daso"),
    )
    links = found.get("links", [])
    for wire in ("float32", "bfloat16", "int8", "int4"):
        yield from least(
            f"an exchange alone, {wire}: share of the link's rate",
            0.9,
            (row[f"{wire} of link"] for row in links if f"{wire} of link" in row),
        )
    accuracy = [*found.get("accuracy", []), *found.get("accuracy_text", [])]
    for task in dict.fromkeys(row["task"] for row in accuracy):
        yield from most(
            f"accuracy, real nodes, default settings, {task}: points behind synchronous",
            0.3,
            (
                row["behind"]
                for row in accuracy
                if (row["task"], row["setting"]) == (task, "default")
            ),
        )
    best: dict[str, float] = {}  # by task
    for row in [*found.get("many_nodes", []), *found.get("many_nodes_adamw", [])]:
        if row["setting"] != "synchronous":
            best[row["task"]] = min(row["behind"], best.get(row["task"], math.inf))
    yield from most(
        "accuracy, 64 virtual nodes, the best setting: points behind", 1.0, best.values()
    )
    for schedule in ("gpipe", "1f1b"):
        yield from least(
            f"pipelines, {schedule}: speed relative to the bound",
            0.95,
            (r["of bound"] for r in found.get("pipelines", []) if r["schedule"] == schedule),
        )
    yield from least(
        "2 partitions, 2 replicas: daso relative to synchronous data parallelism",
        1.6,
        (
            row["of data synchronous"]
            for row in found.get("hybrid", [])
            if row["method"] == "hybrid daso"
        ),
    )
    yield from most(
        "ResNet-1001 on 2 nodes: seconds to the end of the first step",
        300,
        (row["first step s"] for row in found.get("deep", []) if row["depth"] == 1001),
    )
    yield from most(
        "the model's step time: relative error",
        0.15,
        (abs(row["model off"]) for row in paced if "model off" in row),
    )


def least(what: str, wanted: float, values: Iterable[float]) -> Iterator[Mark]:
    """A mark that every value is to reach from above."""
    return _judge(what, f"{wanted:g} or more", values, lambda value: value >= wanted)


def most(what: str, wanted: float, values: Iterable[float]) -> Iterator[Mark]:
    """A mark that no value is to exceed."""
    return _judge(what, f"{wanted:g} or less", values, lambda value: value <= wanted)


def _judge(
    what: str, wanted: str, values: Iterable[float], holds: Callable[[float], bool]
) -> Iterator[Mark]:
    known = (value for value in values if value != "")  # a launch that failed has none
    values = sorted(value for value in known if not math.isnan(value))
    if not values:
        return
    low, high, held = values[0], values[-1], sum(map(holds, values))
    spread = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
    if 0 < held < len(values):
        spread += f"; met in {held} of {len(values)}"
    yield Mark(what, wanted, spread, held == len(values))


def times_faster(rows: Iterable[dict[str, Any]]) -> list[float]:
    """Returns the speed of jdaso divided by that of each synchronous method."""
    ms = {row["method"]: row["ms"] for row in rows}
    return [ms[peer] / ms[JDASO] for peer in SYNCHRONOUS if peer in ms and JDASO in ms]


def table(found: dict[str, Rows]) -> str:
    """All marks as a table; empty where nothing is known."""
    lines = [
        f"| {mark.what} | {mark.wanted} | {mark.measured} | {'yes' if mark.held else 'no'} |\n"
        for mark in marks(found)
    ]
    head = "| what | goal | measured | met |\n| --- | --- | --- | --- |\n"
    return head + "".join(lines) if lines else ""
