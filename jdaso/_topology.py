"""Which node this process is, and which devices are its own."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import socket
import subprocess
from typing import Any

from ._types import NodeError

log = logging.getLogger("jdaso")

_LAUNCHED = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE")
"""Variables in which launchers say how many ranks they started."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """This node among the others.

    Attributes:
        node: its number, 0..num_nodes - 1.
        num_nodes: P.
        host: name of its machine.
        local_rank: its number among the nodes on this machine.
        local_size: how many nodes share this machine.
        comm: the users' communicator (mpi4py), None without MPI. Never used for messages; each
            user of MPI gets a duplicate of its own.
    """

    node: int
    num_nodes: int
    host: str
    local_rank: int = 0
    local_size: int = 1
    comm: Any = None

    def prefix(self, step: int | None = None) -> str:
        """How every error of this node begins."""
        at = "" if step is None else f", step {step}"
        return f"[node {self.node} of {self.num_nodes}, host {self.host}{at}]"


def find_topology(comm: Any = None) -> Topology:
    """Asks MPI who we are; one node where there is no MPI library or no launcher.

    Args:
        comm: an mpi4py communicator; COMM_WORLD where None.

    Raises:
        NodeError: the launcher is of another MPI than the library, or MPI was started without
            ``MPI_THREAD_MULTIPLE``.
    """
    host = socket.gethostname()
    launched = max((int(os.environ.get(name) or 1) for name in _LAUNCHED), default=1)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        if launched > 1:
            raise NodeError(
                f"[host {host}] A launcher started {launched} ranks, but mpi4py cannot be "
                f"imported ({error}). Install an MPI library that matches the launcher: "
                'pip install "jdaso[mpich]", then start with that environment\'s mpiexec.'
            ) from error
        log.info("jdaso runs on one node: no MPI library was found.")
        return Topology(0, 1, host)
    comm = MPI.COMM_WORLD if comm is None else comm
    if comm is MPI.COMM_WORLD and comm.Get_size() == 1 and launched > 1:
        raise NodeError(
            f"[host {host}] The launcher started {launched} ranks, but each sees only itself: "
            f"mpiexec is of another MPI than mpi4py's ({MPI.Get_library_version().split(',')[0]})."
            " Start with the mpiexec of the environment that holds the MPI library."
        )
    if comm.Get_size() == 1:
        log.info("jdaso runs on one node: it was started without a launcher (mpiexec -n N ...).")
        return Topology(comm.Get_rank(), 1, host, comm=comm)
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise NodeError(
            f"[node {comm.Get_rank()} of {comm.Get_size()}, host {host}] jdaso talks to MPI from a "
            "thread of its own and needs MPI_THREAD_MULTIPLE, but MPI was started with thread level"
            f" {MPI.Query_thread()}. Do not lower mpi4py.rc.thread_level (or MPI4PY_RC_THREAD_LEVEL"
            "), or use an MPI library built with thread support."
        )
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        here = shared.Get_rank(), shared.Get_size()
    finally:
        shared.Free()
    return Topology(comm.Get_rank(), comm.Get_size(), host, *here, comm)


def visible_gpus() -> list[str]:
    """The NVIDIA GPUs that this process may use; asks no library that would claim one."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        listing = subprocess.run(
            [tool, "--list-gpus"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (subprocess.SubprocessError, OSError) as error:
        log.warning("jdaso could not ask nvidia-smi for the GPUs of this host: %s", error)
        return []
    gpus = [line for line in listing.splitlines() if line.startswith("GPU ")]
    return [str(i) for i in range(len(gpus))]


def share_out(gpus: list[str], rank: int, ranks: int, *, share: bool = False) -> list[str]:
    """The GPUs of one rank of several on a host: as equal as can be, none given twice.

    Args:
        gpus: all of the host's.
        rank: this rank among those on the host.
        ranks: how many there are.
        share: whether ranks may use one GPU together where there are too few.

    Raises:
        ValueError: fewer GPUs than ranks, and `share` is False.
    """
    if len(gpus) < ranks:
        if not share:
            raise ValueError(
                f"{ranks} nodes share this host but it has {len(gpus)} GPU(s) ({', '.join(gpus)}). "
                "Start fewer ranks a host, or allow it with Session(share_gpus=True)."
            )
        return [gpus[rank % len(gpus)]]
    return gpus[rank * len(gpus) // ranks : (rank + 1) * len(gpus) // ranks]


def claim_gpus(topology: Topology, *, share: bool) -> None:
    """Leaves this process only its own GPUs; does nothing where JAX has started already.

    Raises:
        NodeError: fewer GPUs than nodes on this host.
    """
    from ._compat import backend_started

    platforms = os.environ.get("JAX_PLATFORMS", "")
    if topology.local_size == 1 or platforms == "cpu":
        return
    gpus = visible_gpus()
    if not gpus:
        return
    if _assigned_by_launcher(gpus, topology):
        return
    if backend_started():
        raise NodeError(
            f"{topology.prefix()} JAX has started before jdaso could share out the GPUs of this "
            f"host among its {topology.local_size} nodes. Make the Session before the first use of "
            "a JAX device, or set CUDA_VISIBLE_DEVICES for each rank."
        )
    try:
        mine = share_out(gpus, topology.local_rank, topology.local_size, share=share)
    except ValueError as error:
        raise NodeError(f"{topology.prefix()} {error}") from error
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    if share:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _assigned_by_launcher(gpus: list[str], topology: Topology) -> bool:
    """Whether the ranks of this host already see different GPUs (srun --gpus-per-task, say)."""
    from mpi4py import MPI

    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return False
    shared = topology.comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        everyone = shared.allgather(tuple(gpus))
    finally:
        shared.Free()
    taken = [gpu for chosen in everyone for gpu in chosen]
    return len(taken) == len(set(taken))
