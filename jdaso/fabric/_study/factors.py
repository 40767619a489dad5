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
    "compute": str,
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
    "training": ("method", "model", "compute", "wire", "batch"),
    "halo": ("grid", "scaling"),
}
"""Workload -> the factors that it reads besides the common ones; the others are left out."""

OPTIONAL = ("compute", "wire", "batch", "scaling")
"""Factors for which a workload has a value of its own where a study gives none."""

PAIRS = ("latency", "bandwidth")
"""Workloads between two nodes, whatever the number of nodes of the others."""

SETTINGS: Mapping[str, Mapping[str, int | float]] = {
    "latency": {"warmup": 20, "iterations": 200, "most_seconds": 10.0},
    "bandwidth": {"warmup": 3, "iterations": 20, "most_seconds": 10.0, "window": 16},
    **dict.fromkeys(
        ("allreduce", "allgather", "reduce_scatter", "alltoall", "exchange"),
        {"warmup": 5, "iterations": 20, "most_seconds": 10.0},
    ),
    "training": {
        "warmup": 2,  # cycles of sync_every steps
        "iterations": 4,
        "parameters": 1_000_000,
        "step_seconds": 0.0,  # the published pace
        "sync_every": 4,
        "delay": 0,  # as sync_every
        "fragments": 0,  # as many as jdaso finds fit
        "image": 0,  # the published size, in pixels
        "tokens": 1024,
    },
    "halo": {"warmup": 3, "iterations": 20},
}
"""Workload -> its settings and their values where a study gives none; the same in all cells."""

FEWEST = 5
"""Iterations that are measured even if ``most_seconds`` have no room for them."""

METHODS = ("daso", "synchronous", "instant", "bare")
"""Methods of training.

"daso": jdaso. "instant": the same, but nothing is sent, which no method can beat. "synchronous":
gradients are averaged at each step in the library's own way: by `jdaso.synchronous` over MPI, by
``pmean`` in JAX's own processes, by mpi4jax's operations in the compiled step, by PyTorch's
DistributedDataParallel. "bare": nodes that never communicate.
"""

COMPUTES = ("paced", "real")
"""A step takes a given time and leaves the cores alone, or trains the network."""

SCALINGS = ("strong", "weak")
WIRES = ("float32", "bfloat16", "int8", "int4")
