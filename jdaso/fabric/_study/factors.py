"""The factors of a study, and those that each workload reads."""

from __future__ import annotations

from collections.abc import Mapping

Level = str | int
"""A value of a factor: a name or a number."""

FACTORS: Mapping[str, type] = {
    "fabric": str,
    "library": str,
    "workload": str,
    "nodes": int,
    "bytes": int,
    "wire": str,
    "method": str,
    "model": str,
    "batch": int,
    "grid": int,
    "scaling": str,
}
"""Factor -> the type of its levels."""

COMMON = ("fabric", "library", "workload", "nodes")
"""Factors that every cell has."""

READS: Mapping[str, tuple[str, ...]] = {
    "latency": ("bytes",),
    "bandwidth": ("bytes",),
    "allreduce": ("bytes",),
    "allgather": ("bytes",),
    "reduce_scatter": ("bytes",),
    "alltoall": ("bytes",),
    "exchange": ("bytes", "wire"),
    "training": ("method", "model", "wire", "batch"),
    "halo": ("grid", "scaling"),
}
"""Workload -> the factors that it reads besides the common ones; the others are left out."""

OPTIONAL = ("wire", "batch", "scaling")
"""Factors for which a workload has a value of its own where a study gives none."""

PAIRS = ("latency", "bandwidth")
"""Workloads between two nodes, whatever the number of nodes of the others."""

SETTINGS: Mapping[str, Mapping[str, int | float]] = {
    **dict.fromkeys(("latency",), {"warmup": 20, "iterations": 200}),
    "bandwidth": {"warmup": 3, "iterations": 20, "window": 16},
    **dict.fromkeys(
        ("allreduce", "allgather", "reduce_scatter", "alltoall", "exchange"),
        {"warmup": 5, "iterations": 20},
    ),
    "training": {
        "warmup": 8,
        "iterations": 16,
        "parameters": 1_000_000,
        "step_seconds": 0.02,
        "sync_every": 4,
    },
    "halo": {"warmup": 3, "iterations": 20},
}
"""Workload -> its settings and their values where a study gives none; the same in all cells."""

OF_MPI: Mapping[str, tuple[str, ...]] = {"workload": ("exchange", "halo"), "method": ("daso",)}
"""Factor -> levels that need MPI; the others also run in JAX's own processes."""

METHODS = ("daso", "synchronous", "bare")
MODELS: Mapping[str, int] = {
    "paced": 0,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "inceptionv3": 23_834_568,
    "transformer": 124_439_808,
}
"""Model -> its parameters: as published (the transformer: GPT-2 small); "paced": as set."""

SCALINGS = ("strong", "weak")
WIRES = ("float32", "bfloat16", "int8", "int4")
