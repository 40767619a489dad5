"""Processes that jax.distributed joins to one JAX world, and arrays that lie on several of them."""

from __future__ import annotations

from typing import Any

import jax
from jax import core
from jax._src import distributed as _distributed  # no public name has the world's address

_PART_SECONDS = 10
"""Seconds that a process that ends waits for the others of its world."""

_SILENCE_SECONDS = 365 * 24 * 3600
"""The silence after which JAX ends the processes of a world, with no reason given: never here."""

SPANS_PROCESSES = (
    "lies on devices of several processes, which jax.distributed has joined to one JAX world, and "
    "each rank is a node of its own here. If R ranks are one node, pass "
    "Session(ranks_per_node=R); otherwise do not call jax.distributed.initialize(), or make meshes "
    "and arrays of session.devices (session.mesh) only."
)
"""Reason to refuse arrays on several processes: each would exchange its part as if it were all."""


def coordinator_address() -> str | None:
    """The address of the JAX world that this process has joined; None if it has joined none."""
    if not jax.distributed.is_initialized():
        return None
    return str(_distributed.global_state.coordinator_address)


def join_world(address: str, processes: int, number: int, seconds: float) -> None:
    """Joins this process to a JAX world, before JAX makes its devices.

    Args:
        address: where process 0 opens the world.
        processes: the number of processes.
        number: the number of this process.
        seconds: how long to wait for the others.

    Raises:
        RuntimeError: JAX has made its devices, or the others did not join in time.
    """
    # JAX would keep SIGTERM from the process, and only note that it came.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        address,
        processes,
        number,
        cluster_detection_method="deactivate",
        initialization_timeout=max(int(seconds), 1),
        heartbeat_timeout_seconds=_SILENCE_SECONDS,
        shutdown_timeout_seconds=_PART_SECONDS,
    )


def spans_processes(x: Any) -> bool:
    """Returns whether an array lies on devices of other processes too."""
    return (
        isinstance(x, jax.Array) and not isinstance(x, core.Tracer) and not x.is_fully_addressable
    )
