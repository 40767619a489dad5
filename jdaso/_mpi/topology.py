"""This rank's number among all, its node, and its machine."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence
from typing import Any

from .._base.errors import NodeError
from .._launch import witness
from .._launch.environment import launched_ranks, machine, mark_rank
from .._launch.gpus import gpu_identities
from .launcher import check_launcher, check_library
from .names import name_of, names_of
from .start import everyones, start_mpi


@dataclasses.dataclass(frozen=True)
class Topology:
    """This rank among the others: R consecutive ranks are a node.

    Attributes:
        rank: its number in the session's communicator, 0..num_ranks - 1.
        num_ranks: P R.
        host: name of its machine.
        local_rank: its number among the ranks on this machine.
        local_size: how many ranks share this machine.
        gpus_of_host: the GPUs that each of these ranks could see at first, by unique names (UUIDs);
            None if unknown.
        hosts: the machine of each rank.
        world_rank: its number in the launch if the session has only some of its ranks; else None.
        witnesses: the address of each rank's witness, which reports whether its process runs.
        comm: the user's communicator (mpi4py), None without MPI. Never used for messages; each
            module that uses MPI gets its own duplicate.
        ranks_per_node: R.
    """

    rank: int
    num_ranks: int
    host: str
    local_rank: int = 0
    local_size: int = 1
    gpus_of_host: tuple[tuple[str, ...] | None, ...] = (None,)
    comm: Any = None
    hosts: tuple[str, ...] = ()
    world_rank: int | None = None
    witnesses: tuple[witness.Address | None, ...] = ()
    ranks_per_node: int = 1

    @property
    def node(self) -> int:
        """This rank's node, 0..num_nodes - 1."""
        return self.rank // self.ranks_per_node

    @property
    def num_nodes(self) -> int:
        """P."""
        return self.num_ranks // self.ranks_per_node

    @property
    def place(self) -> int:
        """This rank's number in its node, 0..R - 1."""
        return self.rank % self.ranks_per_node

    def name(self, rank: int, host: str = "") -> str:
        """The name of a rank in messages: that of its node, if it is the node's only one."""
        return name_of(rank, self.ranks_per_node, host)

    def prefix(self, step: int | None = None) -> str:
        """The prefix of every error of this rank."""
        several = self.ranks_per_node > 1 or self.world_rank is not None
        rank = self.rank if self.world_rank is None else self.world_rank
        of_all = f" (rank {rank})" if several else ""
        at = "" if step is None else f", step {step}"
        return f"[node {self.node} of {self.num_nodes}{of_all}, host {self.host}{at}]"


def find_topology(
    comm: Any = None, timeout_seconds: float = 600.0, ranks_per_node: int = 1
) -> Topology:
    """Finds this rank's place by MPI; a single rank without an MPI library or a launcher.

    Args:
        comm: an mpi4py communicator; COMM_WORLD if None.
        timeout_seconds: how long to wait for the other ranks.
        ranks_per_node: R.

    Raises:
        NodeError: launcher and library belong to different MPIs; this process is part of a rank;
            or, on all ranks, some of them started MPI without ``MPI_THREAD_MULTIPLE``, or R differs
            or does not divide their number.
    """
    alone = Topology(0, 1, socket.gethostname())
    try:
        MPI = start_mpi(timeout_seconds)
    except NodeError:
        raise
    except (ImportError, RuntimeError) as error:
        check_library(error)
        return _checked(alone, [ranks_per_node])
    if MPI is None:  # the program has ended MPI
        return _checked(alone, [ranks_per_node])
    world = MPI.COMM_WORLD
    comm = world if comm is None else comm
    if max(launched_ranks(), world.Get_size()) > 1:
        mark_rank(world.Get_rank())
    if comm is world:
        check_launcher(MPI)
    if comm.Get_size() == 1:
        found = dataclasses.replace(alone, rank=comm.Get_rank(), comm=comm)
        return _checked(found, [ranks_per_node])
    return _among_others(MPI, comm, timeout_seconds, ranks_per_node)


def _among_others(MPI: Any, comm: Any, timeout_seconds: float, ranks_per_node: int) -> Topology:
    """This rank's topology, after an all-gather of all ranks' facts."""
    host, rank, ranks = socket.gethostname(), comm.Get_rank(), comm.Get_size()
    kind = "node" if ranks_per_node == 1 else "rank"
    witness.start(f"[{kind} {rank} of {ranks}, host {host}]")  # unless it already runs
    about = {
        "machine": machine(),
        "host": host,
        "threads": MPI.Query_thread() == MPI.THREAD_MULTIPLE,
        "gpus": gpu_identities(),
        "witness": witness.own_port(),
        "ranks_per_node": ranks_per_node,
    }
    everyone = everyones(about, comm, timeout_seconds, max(ranks_per_node, 1))
    here = [p for p in range(ranks) if everyone[p]["machine"] == about["machine"]]
    gpus = (everyone[p]["gpus"] for p in here)
    world = MPI.COMM_WORLD
    topology = Topology(
        rank,
        ranks,
        host,
        local_rank=here.index(rank),
        local_size=len(here),
        gpus_of_host=tuple(g if g is None else tuple(g) for g in gpus),
        comm=comm,
        hosts=tuple(other["host"] for other in everyone),
        world_rank=None if ranks == world.Get_size() else world.Get_rank(),
        witnesses=tuple(
            found and ("localhost" if p in here else everyone[p]["host"], found[0], found[1])
            for p, found in enumerate(other["witness"] for other in everyone)
        ),
    )
    topology = _checked(topology, [other["ranks_per_node"] for other in everyone])
    _check_threads(topology, [other["threads"] for other in everyone])
    return topology


def _check_threads(topology: Topology, threads: Sequence[bool]) -> None:
    poor = [p for p, multiple in enumerate(threads) if not multiple]
    if poor:
        raise NodeError(
            f"{topology.prefix()} jdaso calls MPI from its own thread and needs "
            f"MPI_THREAD_MULTIPLE, but {names_of(poor, topology.ranks_per_node)} started MPI "
            "without it. Do not lower mpi4py.rc.thread_level (or MPI4PY_RC_THREAD_LEVEL), or use "
            "an MPI library built with thread support."
        )


def _checked(topology: Topology, given: Sequence[int]) -> Topology:
    """The topology of nodes of R ranks, given the R of each rank; raises unless it fits."""
    for rank, r in enumerate(given):
        if r < 1:
            raise NodeError(
                f"{topology.prefix()} ranks_per_node must be at least 1, and rank {rank} has {r}."
            )
    if len(set(given)) > 1:
        usual = max(given, key=given.count)
        odd = ", ".join(f"rank {p} has {r}" for p, r in enumerate(given) if r != usual)
        raise NodeError(
            f"{topology.prefix()} The ranks disagree on ranks_per_node: {odd}, the others {usual}. "
            "Give all ranks the same value."
        )
    if topology.num_ranks % given[0]:
        raise NodeError(
            f"{topology.prefix()} {topology.num_ranks} ranks cannot form nodes of ranks_per_node="
            f"{given[0]}. Start a multiple of {given[0]} (mpiexec -n {given[0]})."
        )
    return dataclasses.replace(topology, ranks_per_node=given[0])


def members(comm: Any) -> int | None:
    """The size of a user's communicator; None if MPI has not started, or if `comm` is None.

    Raises:
        ValueError: `comm` is not an intracommunicator that this rank is in.
    """
    if comm is None:
        return None
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        raise ValueError(
            f"comm must be an mpi4py.MPI.Intracomm that this rank is in, got {comm!r}. Ranks that "
            "take no part must make no Session, or use Session(comm=MPI.COMM_SELF)."
        )
    return comm.Get_size() if MPI.Is_initialized() and not MPI.Is_finalized() else None
