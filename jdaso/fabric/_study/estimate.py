"""An estimate of the time that a study will take, before it runs."""

from __future__ import annotations

from .._emulate.cluster import bits_per_second_of
from .crossing import Cell
from .declaration import Study

START_SECONDS, SECONDS_A_NODE = 1.0, 0.7
"""Approximate time of a launch and of each of its ranks, on two cores; JAX takes longer."""

_JAX_SECONDS = 3.0
_WITH_JAX = ("exchange", "training", "halo")
_REAL_BITS = 1e10
_MESSAGE_SECONDS = 1e-4
_POINT_SECONDS = 2e-9
_WIRE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.02, "int4": 0.54}


def seconds_of(study: Study, cell: Cell) -> float:
    """Returns the approximate time of one launch of a cell, at most its limit.

    A real fabric is taken for 10 Gbit/s; a program that is not jdaso's own, for one start.
    """
    factors, workload = cell.factors, study.workloads[str(cell.factors["workload"])]
    nodes = int(factors["nodes"])
    start = START_SECONDS + nodes * SECONDS_A_NODE
    gloo = study.libraries[str(factors["library"])].transport == "gloo"
    if gloo or workload.name in _WITH_JAX:
        start += nodes * _JAX_SECONDS
    if workload.program:
        return min(start, study.limit_seconds)
    count = sum(int(workload.settings[name]) for name in ("warmup", "iterations"))
    return min(start + count * _iteration(study, cell, nodes), study.limit_seconds)


def _iteration(study: Study, cell: Cell, nodes: int) -> float:
    """Seconds of one iteration, from the rate of the links alone."""
    factors, settings = cell.factors, study.workloads[str(cell.factors["workload"])].settings
    rate = study.fabrics[str(factors["fabric"])].rate
    bytes_a_second = (bits_per_second_of(rate) if rate else _REAL_BITS) / 8
    ring = 2 * (nodes - 1) / nodes
    moved, other = float(factors.get("bytes", 0)), 0.0
    if cell.factors["workload"] == "training":
        wire = _WIRE_BYTES[str(factors.get("wire", "float32"))]
        moved, other = float(settings["parameters"]) * wire, 2 * float(settings["step_seconds"])
    elif cell.factors["workload"] == "halo":
        grid = int(factors["grid"])
        moved, other = 4.0 * grid**2 * 6, 2 * grid**3 * _POINT_SECONDS
    windows = float(settings.get("window", 1))
    return other + windows * ring * moved / bytes_a_second + 2 * nodes * _MESSAGE_SECONDS


def duration(seconds: float) -> str:
    """Returns a time as people read it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
