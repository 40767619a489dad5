"""An estimate of the time that a study will take, before it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .._emulate.cluster import bits_per_second_of
from .crossing import Cell
from .declaration import Study
from .factors import FEWEST, Level
from .models import BATCH, MODELS

START_SECONDS, SECONDS_A_NODE = 1.0, 0.7
"""Approximate time of a launch and of each of its ranks, on two cores; JAX takes longer."""

_JAX_SECONDS = 3.0
_WITH_JAX = ("exchange", "training", "halo")
_REAL_BITS = 1e10
_MESSAGE_SECONDS = 1e-4
_POINT_SECONDS = 2e-9

WIRE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.015625, "int4": 0.53125}
"""Bytes of a number on each wire, scales included."""

_CORES = 2  # that all nodes of an emulated study share
_PARAMETER_SECONDS = 4e-9  # of a core, for a parameter in a step: optimizer, packing, merge
_OPERATIONS_A_SECOND = 2e10  # of a core


Factors = Mapping[str, Level]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Iteration:
    """One iteration of a workload, as estimated.

    Attributes:
        moved: bytes that a ring of all nodes reduces.
        compute: seconds without the network, which are measured alone, too.
        hides: whether both go on at the same time.
    """

    moved: float
    compute: float = 0.0
    hides: bool = False


def seconds_of(study: Study, cell: Cell) -> float:
    """Returns the approximate time of one launch of a cell, at most its limit.

    A real fabric is assumed to have 10 Gbit/s, a program that is not jdaso's own to take one start,
    and all nodes to share two cores, as emulated ones do.
    """
    factors, workload = cell.factors, study.workloads[str(cell.factors["workload"])]
    nodes = int(factors["nodes"])
    start = START_SECONDS + nodes * SECONDS_A_NODE
    alone = study.libraries[str(factors["library"])].transport == "mpi"
    if not alone or workload.name in _WITH_JAX:
        start += nodes * _JAX_SECONDS
    if workload.program:
        return min(start, study.limit_seconds)
    if factors.get("compute") == "real":  # alone and with the method
        start += 2 * nodes * MODELS[str(factors["model"])].compiling / _CORES
    one = _ITERATIONS.get(workload.name, _messages)(factors, workload.settings, nodes)
    rate = study.fabrics[str(factors["fabric"])].rate
    bits_a_second = bits_per_second_of(rate) if rate else _REAL_BITS
    network = 2 * (nodes - 1) / nodes * one.moved * 8 / bits_a_second
    together = max(network, one.compute) if one.hides else network + one.compute
    seconds = one.compute + together + 2 * nodes * _MESSAGE_SECONDS
    spent = sum(
        min(int(workload.settings[name]), max(FEWEST, most / seconds)) * seconds
        for name, most in _rooms(workload.settings)
    )
    return min(start + spent, study.limit_seconds)


def _rooms(settings: Settings) -> list[tuple[str, float]]:
    """The two series of iterations, with the seconds that they must fit into."""
    most = float(settings.get("most_seconds", math.inf))
    return [("warmup", most / 2), ("iterations", most)]


def _messages(factors: Factors, settings: Settings, nodes: int) -> Iteration:
    """One operation, or a window of them."""
    return Iteration(float(factors.get("bytes", 0)) * float(settings.get("window", 1)))


def _halo(factors: Factors, settings: Settings, nodes: int) -> Iteration:
    grid = int(factors["grid"])
    return Iteration(4.0 * grid**2 * 6, grid**3 * _POINT_SECONDS)


def _training(factors: Factors, settings: Settings, nodes: int) -> Iteration:
    """A cycle of steps, whose parameters and operations take the cores of all nodes in turn."""
    model, batch = MODELS[str(factors["model"])], int(factors.get("batch", BATCH))
    parameters, tokens = model.parameters or int(settings["parameters"]), int(settings["tokens"])
    busy = parameters * _PARAMETER_SECONDS
    if factors.get("compute") == "real":
        operations = model.step_operations(batch, tokens, int(settings["image"]))
        waits, busy = 0.0, busy + operations / _OPERATIONS_A_SECOND
    else:
        waits = float(settings["step_seconds"]) or model.published_seconds(batch, tokens)
    method, cycle = factors["method"], int(settings["sync_every"])
    averages = {"synchronous": cycle, "daso": 1}.get(str(method), 0)
    moved = averages * parameters * WIRE_BYTES[str(factors.get("wire", "float32"))]
    return Iteration(moved, cycle * (waits + nodes * busy / _CORES), hides=method == "daso")


_ITERATIONS: Mapping[str, Callable[[Factors, Settings, int], Iteration]] = {
    "halo": _halo,
    "training": _training,
}


def duration(seconds: float) -> str:
    """Formats a time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
