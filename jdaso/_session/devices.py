"""This node's devices: their mesh, and checks that host callbacks work on them."""

from __future__ import annotations

import logging
from typing import Any

import jax
import numpy as np

from .._jax.cpus import cpu_threads_reserved, has_cpu_device
from .._mpi.topology import Topology
from .._nodes.control import Control

log = logging.getLogger("jdaso")


def local_mesh(*, joined: bool) -> jax.sharding.Mesh:
    """A mesh of this node's devices, axis ``"local"``: those of its ranks, if it has several."""
    devices = jax.devices() if joined else jax.local_devices()
    auto = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((len(devices),), ("local",), devices=devices, axis_types=auto)


def check_devices(topology: Topology, devices: list[Any], *, sends: bool) -> None:
    """Raises if steps on these devices could not call the host.

    Args:
        topology: for the error's prefix.
        devices: this node's.
        sends: whether steps wait on the host for other nodes.
    """
    on_cpus = devices[0].platform == "cpu"
    own = [device for device in devices if device.process_index == jax.process_index()]
    if sends and on_cpus and not cpu_threads_reserved(len(own)):
        raise RuntimeError(
            f"{topology.prefix()} JAX started {len(own)} CPU devices before jdaso could "
            "reserve enough threads for their waits, and the run would hang. Make the Session "
            f"before the first use of a device, or set the environment variable NPROC to "
            f"{4 * len(own) + 8} or more."
        )
    if not has_cpu_device():
        raise RuntimeError(
            f"{topology.prefix()} JAX has no CPU device beside {devices[0]}, and its "
            "host callbacks need one: JAX_PLATFORMS names other platforms only. Add cpu at its "
            "end, JAX_PLATFORMS=cuda,cpu, or leave it unset."
        )


def compare_devices(control: Control, count: int) -> None:
    """Warns on node 0 if the nodes drive different numbers of devices; a collective call."""
    counts = control.allgather("start a session", np.array([count]))[:, 0].tolist()
    if len(set(counts)) > 1 and control.topology.rank == 0:
        log.warning(
            "%s The nodes drive different numbers of devices (%s). If they process different "
            "numbers of samples per step, pass these: tx.update(..., weight=samples).",
            control.topology.prefix(),
            ", ".join(map(str, counts)),
        )
