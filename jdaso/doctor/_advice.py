"""B, S, wire, engine and binding for the measured cluster, from ``simulate --advise``."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from .._launch.environment import alone
from ._launcher import binding

_COPY_GBYTES = 10.0
"""Speed at which a host is assumed to copy memory, in GB/s."""

_HEADERS = 0.95
"""`Fabric.efficiency`: the model subtracts headers, but a measured rate already excludes them."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """The properties of a cluster that advice depends on.

    Attributes:
        nodes: P, the ranks.
        bytes_per_second: measured rate of the slowest link.
        latency_seconds: of the median pair.
        ranks_per_host: the most on one host.
        cores_per_host: the fewest.
        devices: of each rank.
        vendor: vendor of the launcher.
        ranks_per_node: R; the nodes of a host share its link, the ranks of a node its bytes.
        gpus: whether the ranks have GPUs, whose memory is fast.
    """

    nodes: int
    bytes_per_second: float
    latency_seconds: float
    ranks_per_host: int
    cores_per_host: int
    devices: int
    vendor: str
    ranks_per_node: int = 1
    gpus: bool = True


def advice(found: Measured, *, parameters: float, step_ms: float, limit_seconds: float) -> dict:
    """Returns the result of `simulate --advise` for a cluster, and the launcher's options.

    Args:
        found: the cluster.
        parameters: numbers that are exchanged.
        step_ms: time of a step without network.
        limit_seconds: the longest that the simulation may take.

    *On failure* the result has only the key ``error``.
    """
    nodes_per_host = -(-found.ranks_per_host // found.ranks_per_node)
    bits = found.bytes_per_second * 8 / _HEADERS / nodes_per_host
    command = [sys.executable, "-m", "jdaso", "simulate", "--advise", "--json"]
    for option, value in (
        ("nodes", found.nodes),
        ("rate", f"{max(bits, 1):.0f}bit"),
        ("latency-us", f"{found.latency_seconds * 1e6:.3f}"),
        ("devices", found.devices),
        ("parameters", parameters),
        ("step-ms", step_ms),
        ("copy-gbytes", None if found.gpus else _COPY_GBYTES),
    ):
        command += [f"--{option}", str(value)] if value is not None else []
    environment = {**alone(os.environ), "JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit_seconds
        )
        if done.returncode != 0:
            return {"error": " ".join(done.stderr.split()[-40:])}
        return _chosen(found, json.loads(done.stdout)["rows"], parameters, step_ms)
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        return {"error": str(error)}


def _chosen(found: Measured, rows: list[dict], parameters: float, step_ms: float) -> dict:
    cores = max(1, found.cores_per_host // found.ranks_per_host)
    said = {
        "parameters": parameters,
        "step_ms": step_ms,
        "engine": "mpi4py",
        "binding": binding(found.vendor, cores),
    }
    best = next((row for row in rows if row["method"] == "advised"), None)
    if best is None:
        return {**said, "wire": None}
    share = best["of no network"]
    chosen = {"sync_every": best["B"], "delay": best["S"], "wire": best["wire"]}
    return {**said, **chosen, "exchange_ms": best["exchange ms"], "of_no_network": share}


def in_sentences(advice: Mapping[str, Any]) -> str:
    """Returns the advice in sentences."""
    if "error" in advice:
        return f"No advice: python -m jdaso simulate --advise failed ({advice['error']})."
    about = f"{advice['parameters'] / 1e6:g} M parameters and steps of {advice['step_ms']:g} ms"
    ending = (
        f'Session(engine="{advice["engine"]}"). Start the ranks with {advice["binding"]}.\n'
        "Other models: --parameters, --step-ms; other plans: python -m jdaso simulate --advise."
    )
    if advice["wire"] is None:
        return (
            f"Advice for {about}: the links are too slow to hide an exchange behind 64 steps.\n"
            f"Make the step longer (a larger batch), or take fewer, larger nodes.\n{ending}"
        )
    return (
        f"Advice for {about}:\n"
        f"sync_every={advice['sync_every']}, delay={advice['delay']}, "
        f'wire="{advice["wire"]}": an exchange takes {advice["exchange_ms"]:.3g} ms, and a step '
        f"has {advice['of_no_network']:.0%} of its speed alone.\n{ending}"
    )
