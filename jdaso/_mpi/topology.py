"""This process's number among the nodes, and its own devices."""

from __future__ import annotations

import dataclasses
import socket
from typing import Any

from .._errors import NodeError
from .._launch import witness
from .._launch.environment import claimed_by, launched_ranks, machine, mark_rank
from .._launch.gpus import gpu_identities
from .start import everyones, start_mpi


@dataclasses.dataclass(frozen=True)
class Topology:
    """This node among the others.

    Attributes:
        node: its number, 0..num_nodes - 1.
        num_nodes: P.
        host: name of its machine.
        local_rank: its number among the nodes on this machine.
        local_size: how many nodes share this machine.
        gpus_of_host: the GPUs that each of these nodes could see at first, by unique names (UUIDs);
            None if unknown.
        hosts: the machine of each node.
        rank: this rank's number in the launch if the nodes are only some of its ranks; else None.
        witnesses: the address of each node's witness, which tells whether its process runs.
        comm: the user's communicator (mpi4py), None without MPI. Never used for messages; each
            module that uses MPI gets its own duplicate.
    """

    node: int
    num_nodes: int
    host: str
    local_rank: int = 0
    local_size: int = 1
    gpus_of_host: tuple[tuple[str, ...] | None, ...] = (None,)
    comm: Any = None
    hosts: tuple[str, ...] = ()
    rank: int | None = None
    witnesses: tuple[witness.Address | None, ...] = ()

    def prefix(self, step: int | None = None) -> str:
        """The prefix of every error of this node."""
        of_all = "" if self.rank is None else f" (rank {self.rank})"
        at = "" if step is None else f", step {step}"
        return f"[node {self.node} of {self.num_nodes}{of_all}, host {self.host}{at}]"


def find_topology(comm: Any = None, timeout_seconds: float = 600.0) -> Topology:
    """Finds this node by MPI; a single node without an MPI library or a launcher.

    Args:
        comm: an mpi4py communicator; COMM_WORLD if None.
        timeout_seconds: how long to wait for the other nodes.

    Raises:
        NodeError: launcher and library belong to different MPIs; this process is part of a rank;
            or, on all nodes, some of them started MPI without ``MPI_THREAD_MULTIPLE``.
    """
    host, launched = socket.gethostname(), launched_ranks()
    try:
        MPI = start_mpi(timeout_seconds)
    except NodeError:
        raise
    except (ImportError, RuntimeError) as error:
        if launched > 1:
            raise NodeError(
                f"[host {host}] A launcher started {launched} ranks, but mpi4py cannot be "
                f"imported ({error}). Install an MPI library that matches the launcher: "
                'pip install "jdaso[mpich]", then start with that environment\'s mpiexec.'
            ) from error
        return Topology(0, 1, host)
    if MPI is None:  # the program has ended MPI
        return Topology(0, 1, host)
    comm = MPI.COMM_WORLD if comm is None else comm
    if max(launched, MPI.COMM_WORLD.Get_size()) > 1:
        mark_rank(MPI.COMM_WORLD.Get_rank())
    if comm is MPI.COMM_WORLD and comm.Get_size() == 1 and launched > 1:
        library = " ".join(MPI.Get_library_version().split(",")[0].splitlines()[0].split())
        raise NodeError(
            f"[host {host}] The launcher started {launched} ranks ({claimed_by()} in the "
            f"environment), but each sees only itself: mpiexec is of another MPI than mpi4py's "
            f"({library}). Start with the mpiexec of the environment that holds the MPI library, or"
            " with an srun --mpi=... that it knows; for separate runs of one node each, use "
            "Session(comm=MPI.COMM_SELF)."
        )
    if comm.Get_size() == 1:
        return Topology(comm.Get_rank(), 1, host, comm=comm)
    node, nodes = comm.Get_rank(), comm.Get_size()
    witness.start(f"[node {node} of {nodes}, host {host}]")  # unless it already runs
    about = {
        "machine": machine(),
        "host": host,
        "threads": MPI.Query_thread() == MPI.THREAD_MULTIPLE,
        "gpus": gpu_identities(),
        "witness": witness.own_port(),
    }
    everyone = everyones(about, comm, timeout_seconds)
    poor = [p for p, other in enumerate(everyone) if not other["threads"]]
    if poor:
        raise NodeError(
            f"[node {node} of {nodes}, host {host}] jdaso talks to MPI from a thread of its own and"
            f" needs MPI_THREAD_MULTIPLE, but {'node' if len(poor) == 1 else 'nodes'} "
            f"{', '.join(map(str, poor))} started MPI without it. Do not lower "
            "mpi4py.rc.thread_level (or MPI4PY_RC_THREAD_LEVEL), or use an MPI library built with "
            "thread support."
        )
    here = [p for p in range(nodes) if everyone[p]["machine"] == about["machine"]]
    gpus = tuple(g if g is None else tuple(g) for g in (everyone[p]["gpus"] for p in here))
    hosts = tuple(other["host"] for other in everyone)
    world = MPI.COMM_WORLD
    rank = None if nodes == world.Get_size() else world.Get_rank()
    witnesses = tuple(
        found and ("localhost" if p in here else everyone[p]["host"], found[0], found[1])
        for p, found in enumerate(other["witness"] for other in everyone)
    )
    mine = here.index(node)
    return Topology(node, nodes, host, mine, len(here), gpus, comm, hosts, rank, witnesses)


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
