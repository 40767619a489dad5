"""Curves of a study, for its page and for papers; drawing them is left to others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from .alpha_beta import on_wire, rates_of
from .collectives import BUS
from .measured import Key, MeasuredLaunch, good_cells, key_of
from .models import BATCH
from .ratios import spread_of

Column = Float64[np.ndarray, " points"]


class Curve(NamedTuple):
    """One line: medians over all iterations, between their 5 and 95 % quantiles.

    Attributes:
        label: the factors by which the lines of a chart differ.
        x: increasing.
        low: 5 % are below.
        median: half of them.
        high: 95 %.
    """

    label: str
    x: Column
    low: Column
    median: Column
    high: Column


class Chart(NamedTuple):
    """A chart of curves.

    Attributes:
        key: for names of files: lower-case letters, digits and hyphens.
        title: of the chart.
        x_label: of the axis, with its unit.
        y_label: of the axis, with its unit.
        curves: at least one.
        log: the logarithmic axes: "", "x" or "xy".
    """

    key: str
    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    log: str = ""


Measure = Callable[[Sequence[MeasuredLaunch]], np.ndarray]
"""Launches of a cell -> a number to draw for each of their iterations."""
Studies = Mapping[str, Sequence[MeasuredLaunch]]
"""Name of a study -> its launches."""

_RATE = "Gbit/s"
"""The rate of a cell's fabric, as a factor."""


def charts_of(studies: Studies) -> list[Chart]:
    """Returns all charts of one or several studies."""
    makers = (bandwidth_charts, latency_charts, throughput_charts, exposed_charts, rate_charts)
    return [chart for make in makers for chart in make(studies)]


def bandwidth_charts(studies: Studies) -> list[Chart]:
    """Returns bus bandwidth against bytes: a chart for each operation and number of nodes.

    One node sends nothing, and has none.
    """

    def rate(launches: Sequence[MeasuredLaunch]) -> np.ndarray:
        of = launches[0].factors
        bus = BUS[of["workload"]](of["nodes"]) * on_wire(of)
        return bus * of["bytes"] / _seconds(launches) / 1e9

    several = {
        name: [one for one in some if one.factors["nodes"] > 1] for name, some in studies.items()
    }
    return _against_bytes(several, "bandwidth", "Bus bandwidth", "GB/s", rate)


def latency_charts(studies: Studies) -> list[Chart]:
    """Returns the time against bytes: a chart for each operation and number of nodes."""
    return _against_bytes(studies, "time", "Time", "microseconds", lambda x: 1e6 * _seconds(x))


def _against_bytes(
    studies: Studies, key: str, name: str, unit: str, measure: Measure
) -> list[Chart]:
    def of_size(factors: Mapping[str, Any]) -> bool:
        return factors.get("workload") in BUS and "bytes" in factors

    found = []
    for place, curves in _curves(studies, "bytes", ("workload", "nodes"), of_size, measure).items():
        workload, nodes = (dict(place).get(factor) for factor in ("workload", "nodes"))
        title = f"{name}: {workload}, {nodes} nodes"
        found.append(Chart(slug(key, workload, nodes), title, "bytes", unit, curves, log="xy"))
    return found


def throughput_charts(studies: Studies) -> list[Chart]:
    """Returns throughput against nodes: samples of all nodes, or iterations, per second."""

    def rate(launches: Sequence[MeasuredLaunch]) -> np.ndarray:
        of = launches[0].factors
        samples = of.get("batch", BATCH) * of["nodes"] if of["workload"] == "training" else 1
        return samples / _seconds(launches)

    found = []
    for names, curves in _of_steps(studies, "nodes", rate):
        unit = "samples per second" if "training" in names else "iterations per second"
        title = f"Throughput: {', '.join(names)}"
        found.append(Chart(slug("throughput", *names), title, "nodes", unit, curves))
    return found


def exposed_charts(studies: Studies) -> list[Chart]:
    """Returns the share of a step that is not compute against nodes, where it was split."""
    return [
        Chart(slug("exposed", *names), _exposed(names), "nodes", "% of a step", curves)
        for names, curves in _of_steps(_split(studies), "nodes", _share)
    ]


def rate_charts(studies: Studies) -> list[Chart]:
    """Returns the same share against the rate of the fabric; fabrics without one are left out."""
    rated = {name: _rated(some) for name, some in studies.items()}
    label = "rate of the fabric, Gbit/s"
    return [
        Chart(slug("exposed-rate", *names), _exposed(names), label, "% of a step", curves, "x")
        for names, curves in _of_steps(_split(rated), _RATE, _share, aside=["fabric"])
    ]


def _rated(launches: Sequence[MeasuredLaunch]) -> list[MeasuredLaunch]:
    """Returns launches on several nodes with the rate of their fabric as a factor."""
    rates = rates_of(launches)
    return [
        dataclasses.replace(one, factors={**one.factors, _RATE: rates[one.factors["fabric"]] / 1e9})
        for one in launches
        if one.factors["fabric"] in rates and one.factors["nodes"] > 1
    ]


def _exposed(names: Iterable[str]) -> str:
    return f"Exposed communication: {', '.join(names)}"


def _split(studies: Studies) -> Studies:
    """Returns the launches that measured compute."""
    return {
        name: [one for one in some if one.compute_seconds.size] for name, some in studies.items()
    }


def _share(launches: Sequence[MeasuredLaunch]) -> np.ndarray:
    """Returns ``1 - compute / seconds`` in percent."""
    compute = np.median(np.concatenate([one.compute_seconds for one in launches]))
    return 100 * (1 - compute / _seconds(launches))


def _seconds(launches: Sequence[MeasuredLaunch]) -> np.ndarray:
    return np.concatenate([one.seconds for one in launches])


def _of_steps(
    studies: Studies, against: str, measure: Measure, aside: Sequence[str] = ()
) -> list[tuple[list[str], list[Curve]]]:
    """Returns the curves of all cells but micro-benchmarks: workload and model, and their lines."""

    def wanted(factors: Mapping[str, Any]) -> bool:
        return factors.get("workload") not in BUS

    places = _curves(studies, against, ("workload", "model"), wanted, measure, aside)
    return [([str(level) for _, level in place], curves) for place, curves in places.items()]


def _curves(
    studies: Studies,
    against: str,
    apart: Iterable[str],
    wanted: Callable[[Mapping[str, Any]], bool],
    measure: Measure,
    aside: Iterable[str] = (),
) -> dict[Key, list[Curve]]:
    """Returns the curves of each chart: one for each combination of all other factors.

    Args:
        studies: their launches.
        against: the factor along the axis.
        apart: factors that get a chart for each level.
        wanted: returns whether a cell is drawn, by its factors.
        measure: gives the numbers.
        aside: factors that make no line of their own.
    """
    apart, points = (set(apart) - {against}), {}
    for name, launches in studies.items():
        for some in good_cells(launches).values():
            factors = some[0].factors
            if against in factors and wanted(factors):
                place = tuple(pair for pair in key_of(factors) if pair[0] in apart)
                line = name, key_of(factors, without=[*apart, *aside, against])
                median, low, high = spread_of(measure(some))
                point = (float(factors[against]), low, median, high)
                points.setdefault(place, {}).setdefault(line, []).append(point)
    return {
        place: [
            Curve(label, *np.array(sorted(some)).T)
            for label, some in zip(_labels([*lines]), lines.values(), strict=True)
        ]
        for place, lines in points.items()
    }


def _labels(lines: Sequence[tuple[str, Key]]) -> list[str]:
    """Returns the labels of the lines of a chart: study and factors by which they differ."""
    keys = [{"study": study, **dict(key)} for study, key in lines]
    differ = [
        name for name in dict.fromkeys(name for key in keys for name in key)
        if len({key.get(name) for key in keys}) > 1
    ]  # fmt: skip
    labels = []
    for key in keys:
        levels = {name: key[name] for name in differ if name in key} or key
        words = [f"{x} {of}" if isinstance(x, int) else str(x) for of, x in levels.items()]
        labels.append(", ".join(words))
    return labels


def slug(*parts: object) -> str:
    """Joins words into the name of a file: lower-case letters, digits and hyphens."""
    text = "-".join(str(part) for part in parts if part is not None)
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower())
