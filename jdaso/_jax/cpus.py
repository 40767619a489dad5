"""JAX's CPU backend: its devices, its threads, and clients besides that of the training."""

from __future__ import annotations

import functools
import os
import re
from importlib.metadata import entry_points
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import xla_bridge  # no public name shows whether a backend has started
from jaxlib import xla_client

_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_PATIENCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds",
    "--xla_cpu_collective_call_terminate_timeout_seconds",
)


def cpu_device_count() -> int:
    """The number of CPU devices that this process requests from JAX (1 by default)."""
    found = _DEVICE_COUNT.findall(os.environ.get("XLA_FLAGS", ""))
    configured = getattr(jax.config, "jax_num_cpu_devices", -1)
    return max(int(found[-1]) if found else 1, configured if configured > 0 else 1)


def backend_started() -> bool:
    """Returns whether JAX has made its devices; from then on its thread pools have their size."""
    return xla_bridge.backends_are_initialized()


def computes_on_cpus() -> bool:
    """Returns whether JAX's devices are CPUs, as far as that is known before it makes them."""
    if backend_started():
        return jax.default_backend() == "cpu"
    chosen = getattr(jax.config, "jax_platforms", None)
    return chosen == "cpu" or not entry_points(group="jax_plugins")


def namespace_of(x: Any) -> Any:
    """NumPy for arrays of the host; else `jax.numpy`, which compiles a program for each shape."""
    if isinstance(x, jax.Array) and any(device.platform != "cpu" for device in x.devices()):
        return jnp
    return np


def has_cpu_device() -> bool:
    """Returns whether JAX has a device of the host, where `io_callback` puts its arguments.

    It has none if ``JAX_PLATFORMS=cuda`` names other platforms only.
    """
    try:
        return bool(jax.local_devices(backend="cpu"))
    except RuntimeError:
        return False


def reserve_cpu_threads(*, joined: bool = False) -> None:
    """Gives XLA's CPU backend enough threads for callbacks that block.

    XLA runs each CPU device, each part of an operation and each host callback in two pools of as
    many threads as there are cores. With L devices, L - 1 of them wait in a ``pmean`` and the last
    in a callback: on 2 cores with L = 2 no thread is left to bring the callback its arguments, and
    the process hangs. XLA reads the pools' size from ``NPROC`` when the backend starts. XLA also
    ends a process whose devices meet more than 40 s apart, which a node that compiles slowly can
    cause on the others: this limit is raised to an hour; jdaso's own limit is shorter.

    Does nothing for one device (its callbacks run in place), or if the user has set the values.

    Args:
        joined: whether devices of other processes take part in a step.
    """
    devices = cpu_device_count()
    if (devices == 1 and not joined) or backend_started():
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    os.environ.setdefault("NPROC", str((cores or 1) + 4 * devices + 4))
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [f"{name}=3600" for name in _PATIENCE if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *missing]).strip()


@functools.cache
def private_cpu_device() -> Any:
    """A CPU device of its own client, whose programs run in the thread that calls them.

    A program that waits in MPI must not share a client with the training. JAX queues some 32 steps
    per device. If the first of them is in a callback that waits for MPI, the program that would
    bring the answer is the 33rd, and would also take a thread from the pools described above.
    """
    return xla_client.make_cpu_client(asynchronous=False, num_devices=1).local_devices()[0]


def lane_device() -> Any:
    """A CPU device like `private_cpu_device`, of another client, with a pool of one thread.

    A program with a loop takes a thread of its client's pool. A program that waits there for
    another node must not keep the thread from one that the other node waits for.
    """
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = "1"  # the size of the pool; otherwise one thread for each core
    try:
        return xla_client.make_cpu_client(asynchronous=False, num_devices=1).local_devices()[0]
    finally:
        if before is None:
            del os.environ["NPROC"]
        else:
            os.environ["NPROC"] = before


def cpu_threads_reserved(devices: int) -> bool:
    """Returns whether callbacks may block: there is one CPU device, or NPROC sets the threads."""
    return devices == 1 or "NPROC" in os.environ
