"""The start of a session: this process, its topology, and the nodes' agreement."""

from __future__ import annotations

import functools
import logging
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from .._base.errors import NodeError
from .._base.version import __version__
from .._engines.make import check_engine
from .._jax.cpus import backend_started, computes_on_cpus, reserve_cpu_threads
from .._launch.environment import launched_ranks
from .._launch.memory import keep_freed_memory
from .._mpi.gpus import claim_gpus
from .._mpi.start import why_alone
from .._mpi.topology import Topology, find_topology, members
from .._nodes import exit as _exit
from .._nodes.control import Control, Facts

log = logging.getLogger("jdaso")

_START_SECONDS = 600.0
"""The longest wait for all nodes to start, unless another limit is given."""


def prepare_process(comm: Any, *, sends: bool, joined: bool) -> None:
    """Prepares this process for a session, before MPI and XLA start their threads.

    Args:
        comm: the user's communicator, if any.
        sends: whether the session sends to other nodes, if there are any.
        joined: whether nodes have several ranks.

    Raises:
        NodeError: the process's last session lost nodes.
    """
    if _exit.is_bereft():
        raise NodeError(
            "Nodes have failed in this process's last session, and MPI cannot make another one "
            "without them. Start the job again."
        )
    _exit.install()
    reserve_cpu_threads(joined=joined)
    several = members(comm) != 1 and launched_ranks() > 1
    if several and sends and computes_on_cpus():
        keep_freed_memory()


def topology_of(
    comm: Any, timeout_seconds: float | None, ranks_per_node: int, *, simulated: bool
) -> Topology:
    """Finds the nodes; see `find_topology`."""
    if simulated and comm is None and launched_ranks() == 1:
        return Topology(0, 1, socket.gethostname())  # MPI may be missing
    return find_topology(comm, timeout_seconds or _START_SECONDS, ranks_per_node)


def agree_on_start(
    control: Control, engine: str, settings: Facts, invalid: Exception | None, *, share_gpus: bool
) -> None:
    """Claims this node's GPUs; raises on all nodes unless all can start, with equal settings.

    Args:
        control: all ranks.
        engine: the engine's name.
        settings: further facts that must be equal.
        invalid: an error that this node has already found.
        share_gpus: whether nodes on one host may use the same GPU.
    """
    raised = invalid
    if raised is None:
        try:
            claim_gpus(
                control.topology,
                share=share_gpus,
                on_cpus=computes_on_cpus(),
                started=backend_started(),
            )
            check_engine(engine, control.topology.num_nodes)
        except (ImportError, NodeError) as error:
            raised = error
    status = "starts" if raised is None else str(raised)
    versions = [("the jdaso version", __version__), ("the JAX version", jax.__version__)]
    facts = [*versions, ("the engine", engine), *settings, (f"engine {engine}", status)]
    control.agree("start a session", facts)
    if raised is not None:
        raise raised


class Began(NamedTuple):
    """The moment at which a session began.

    Attributes:
        unix_seconds: by the time of day of node 0's host; the same number on all nodes.
        seconds: by this node's `time.perf_counter`.
    """

    unix_seconds: float
    seconds: float


def begin_together(control: Control, now: Callable[[], float] = time.time) -> Began:
    """Meets the other nodes; returns the moment, to which records of all nodes can refer."""
    times = control.allgather("start a session", np.array([now()]))
    return Began(float(times[0, 0]), time.perf_counter())


@functools.cache
def say_alone(*, has_mpi: bool) -> None:
    """Warns once that the run has one node, with the reason."""
    why = why_alone() or ("mpiexec -n N starts more" if has_mpi else "no MPI library was found")
    log.warning("jdaso runs on one node: %s.", why)
