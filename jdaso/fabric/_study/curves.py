"""Curves of a study, for its page and for papers: what is drawn, not how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from .collectives import BUS
from .measured import Key, Launch, good_cells, key_of
from .ratios import spread_of

Column = Float64[np.ndarray, " points"]


class Curve(NamedTuple):
    """One line: medians over all iterations, between the 5 and the 95 % of them.

    Attributes:
        label: the factors by which the lines of a chart differ.
        x: rising.
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
        log: whether both axes are logarithmic.
    """

    key: str
    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    log: bool = False


Measure = Callable[[Mapping[str, Any], np.ndarray], np.ndarray]
"""Factors and the seconds of all iterations -> the numbers to draw."""
Studies = Mapping[str, Sequence[Launch]]
"""Name of a study -> its launches."""


def bandwidth_charts(studies: Studies) -> list[Chart]:
    """Returns bus bandwidth against bytes: a chart for each operation and number of nodes."""

    def rate(factors: Mapping[str, Any], seconds: np.ndarray) -> np.ndarray:
        factor = BUS[factors["workload"]](factors["nodes"])
        return factor * factors["bytes"] / seconds / 1e9

    return _against_bytes(studies, "bandwidth", "Bus bandwidth", "GB/s", rate)


def latency_charts(studies: Studies) -> list[Chart]:
    """Returns the time of an operation against bytes: a chart for each, and number of nodes."""
    return _against_bytes(studies, "time", "Time", "microseconds", lambda _, s: 1e6 * s)


def _against_bytes(
    studies: Studies, key: str, name: str, unit: str, measure: Measure
) -> list[Chart]:
    def of_size(factors: Mapping[str, Any]) -> bool:
        return factors.get("workload") in BUS and "bytes" in factors

    found = []
    for place, curves in _curves(studies, "bytes", ("workload", "nodes"), of_size, measure).items():
        workload, nodes = (dict(place).get(factor) for factor in ("workload", "nodes"))
        title = f"{name}: {workload}, {nodes} nodes"
        found.append(Chart(slug(key, workload, nodes), title, "bytes", unit, curves, log=True))
    return found


def throughput_charts(studies: Studies) -> list[Chart]:
    """Returns throughput against nodes: samples of all nodes, or iterations, per second."""

    def rate(factors: Mapping[str, Any], seconds: np.ndarray) -> np.ndarray:
        return (factors["batch"] * factors["nodes"] if "batch" in factors else 1) / seconds

    found = []
    for place, curves in _curves(studies, "nodes", ("workload", "model"), _steps, rate).items():
        names = [str(level) for _, level in place]
        batch = any("batch" in one.factors for some in studies.values() for one in some)
        unit = "samples per second" if batch and "training" in names else "iterations per second"
        title = f"Throughput: {', '.join(names)}"
        found.append(Chart(slug("throughput", *names), title, "nodes", unit, curves))
    return found


def exposed_charts(studies: Studies) -> list[Chart]:
    """Returns the share of a step that is not compute against nodes, where it was split."""
    split = {
        name: [one for one in some if one.compute_seconds.size] for name, some in studies.items()
    }
    compute = {
        key: float(np.median(np.concatenate([one.compute_seconds for one in some])))
        for launches in split.values()
        for key, some in good_cells(launches).items()
    }

    def share(factors: Mapping[str, Any], seconds: np.ndarray) -> np.ndarray:
        return 100 * (1 - compute[key_of(factors)] / seconds)

    found = []
    for place, curves in _curves(split, "nodes", ("workload", "model"), _steps, share).items():
        names = [str(level) for _, level in place]
        title = f"Exposed communication: {', '.join(names)}"
        found.append(Chart(slug("exposed", *names), title, "nodes", "% of a step", curves))
    return found


def charts_of(studies: Studies) -> list[Chart]:
    """Returns all charts of one or several studies."""
    makers = (bandwidth_charts, latency_charts, throughput_charts, exposed_charts)
    return [chart for make in makers for chart in make(studies)]


def _steps(factors: Mapping[str, Any]) -> bool:
    return factors.get("workload") not in BUS


def _curves(
    studies: Studies,
    against: str,
    apart: Iterable[str],
    wanted: Callable[[Mapping[str, Any]], bool],
    measure: Measure,
) -> dict[Key, list[Curve]]:
    """Returns the curves of each chart: one for each combination of all other factors.

    Args:
        studies: their launches.
        against: the factor along the axis.
        apart: factors that get a chart for each level.
        wanted: tells cells that are drawn from others, by their factors.
        measure: gives the numbers.
    """
    apart, points = (set(apart) - {against}), {}
    for name, launches in studies.items():
        for some in good_cells(launches).values():
            factors = some[0].factors
            if against in factors and wanted(factors):
                place = tuple(pair for pair in key_of(factors) if pair[0] in apart)
                rest = key_of(factors, without=[*apart, against])
                label = " ".join(str(level) for _, level in rest)
                label = f"{name}: {label}" if len(studies) > 1 else label
                seconds = np.concatenate([launch.seconds for launch in some])
                median, low, high = spread_of(measure(factors, seconds))
                point = (float(factors[against]), low, median, high)
                points.setdefault(place, {}).setdefault(label, []).append(point)
    return {
        place: [Curve(label, *np.array(sorted(some)).T) for label, some in of_chart.items()]
        for place, of_chart in points.items()
    }


def slug(*parts: object) -> str:
    """Joins words to the name of a file: lower-case letters, digits and hyphens."""
    text = "-".join(str(part) for part in parts if part is not None)
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower())
