"""One JAX world of the ranks of a node: ``jax.distributed``, started by jdaso or the program."""

from __future__ import annotations

import logging
import socket
import threading

import jax

from .._jax.cpus import backend_started
from .._jax.world import coordinator_address, join_world
from .._mpi.topology import Topology
from .._nodes.control import Control
from .._nodes.exit import wait_at_end

log = logging.getLogger("jdaso")

_LONGEST_SECONDS = 300.0
"""The longest wait for the other ranks, which are already there, to join."""


_parted = threading.Event()
"""Set once this process waits for the other ranks of its node when it ends."""


def join_ranks(everyone: Control, timeout_seconds: float | None) -> None:
    """Joins the ranks of this node to one JAX world; collective, before JAX makes its devices.

    The node's first rank opens the world at a free port of its host. A world that the program has
    made itself is used if it consists of this node's ranks, in their order.

    Args:
        everyone: all ranks.
        timeout_seconds: the longest wait.

    Raises:
        NodeError: on all ranks, if a world does not fit its node, or cannot be made.
    """
    topology, doing = everyone.topology, "join the ranks of each node"
    if topology.ranks_per_node == 1:
        return
    mine = coordinator_address()
    begun = mine is not None
    # Joining blocks, so the ranks first agree that all can join.
    ready = everyone.everyone(doing, "begun" if begun else "late" if backend_started() else "")
    for rank, state in enumerate(ready):
        if state != ready[rank - rank % topology.ranks_per_node] or state == "late":
            raise everyone.error(
                f"{topology.name(rank)} cannot join its node: JAX has made its devices there, or "
                "the program has called jax.distributed.initialize() on some ranks of the node "
                "only. Make the Session before the first use of JAX, on all ranks alike."
            )
    address = _address_of_node(everyone, doing, mine)
    seconds = min(timeout_seconds or _LONGEST_SECONDS, _LONGEST_SECONDS)
    status = "yes"
    try:
        if not begun:
            join_world(address, topology.ranks_per_node, topology.place, seconds)
        if (text := _why_not(topology, fits=not begun or mine == address)) is not None:
            status = text
    except Exception as error:
        status = f"{type(error).__name__}: {error}"
    results = everyone.everyone(doing, status)
    for rank, result in enumerate(results):
        if result != "yes":
            raise everyone.error(f"{topology.name(rank)} cannot join its node: {result}")
    _part_together(everyone)
    _warn_if_spread(topology)


def _part_together(everyone: Control) -> None:
    """Lets the ranks of a node end together, as MPI_Finalize does: JAX's world ends them otherwise.

    A rank may work for hours after its last session, while another one has nothing left to do.
    """
    if _parted.is_set():
        return
    _parted.set()
    topology = everyone.topology
    comm = everyone.split(topology.comm, topology.node, topology.place, stays=True)

    wait_at_end(lambda: comm.Ibarrier().Test)


def _why_not(topology: Topology, *, fits: bool) -> str | None:
    """The reason why the existing world is not that of this node; None if it is."""
    count, number = jax.process_count(), jax.process_index()
    ranks, place = topology.ranks_per_node, topology.place
    if fits and (count, number) == (ranks, place):
        return None
    return (
        f"the program has called jax.distributed.initialize() for {count} processes, with this one "
        f"as number {number}; ranks_per_node={ranks} needs a world for each node, of its {ranks} "
        f"ranks in their order, and this rank as number {place}. Leave that call out: the Session "
        "makes these worlds."
    )


def _address_of_node(everyone: Control, doing: str, mine: str | None) -> str:
    """The address of this node's world: that of its first rank's world, or a free one on its host.

    The port is held until all nodes have found theirs. Otherwise two nodes of one host could find
    the same, and JAX would open both worlds there: it lets other processes listen at its port.
    """
    topology = everyone.topology
    with socket.socket() as free:
        free.bind(("", 0))
        said = everyone.everyone(doing, mine or _address(topology, free.getsockname()[1]))
    return said[topology.node * topology.ranks_per_node]


def _address(topology: Topology, port: int) -> str:
    """The address of a port of this host, for the ranks of its node."""
    host = "127.0.0.1" if _hosts(topology) == {topology.host} else topology.host
    return f"{host}:{port}"


def _hosts(topology: Topology) -> set[str]:
    """The hosts of this node's ranks."""
    first = topology.rank - topology.place
    return set(topology.hosts[first : first + topology.ranks_per_node])


def _warn_if_spread(topology: Topology) -> None:
    """Warns once if the ranks of a node run on different hosts, which makes each step slow."""
    if topology.place == 0 and len(hosts := _hosts(topology)) > 1:
        log.warning(
            "%s The ranks of this node run on different hosts (%s), and average their gradients "
            "over the network at every step. Start the ranks of a host after each other (mpiexec "
            "--map-by slot, -ppn %d), or set ranks_per_node to the number on each host.",
            topology.prefix(),
            ", ".join(sorted(hosts)),
            topology.ranks_per_node,
        )
