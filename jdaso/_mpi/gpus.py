"""GPUs of a host, shared out between the nodes that run on it."""

from __future__ import annotations

import os

from .._errors import NodeError
from .._launch.gpus import visible_gpus
from .topology import Topology


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


def claim_gpus(topology: Topology, *, share: bool, on_cpus: bool, started: bool) -> None:
    """Leaves this process only its own GPUs.

    Args:
        topology: the nodes.
        share: whether nodes may use one GPU together.
        on_cpus: whether JAX computes on CPUs; then nothing is claimed.
        started: whether JAX has made its devices.

    Raises:
        NodeError: fewer GPUs than nodes on this host, or JAX has started already.
    """
    if topology.local_size == 1 or on_cpus:
        return
    gpus = visible_gpus()
    if not gpus:
        return
    if _assigned_by_launcher(topology):
        return
    try:
        mine = share_out(gpus, topology.local_rank, topology.local_size, share=share)
    except ValueError as error:
        raise NodeError(f"{topology.prefix()} {error}") from error
    if started:
        if mine == gpus:  # dealt out by the process's last session
            return
        raise NodeError(
            f"{topology.prefix()} JAX has started before jdaso could share out the GPUs of this "
            f"host among its {topology.local_size} nodes. Make the Session before the first use of "
            "a JAX device, or set CUDA_VISIBLE_DEVICES for each rank."
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    if len(gpus) < topology.local_size:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _assigned_by_launcher(topology: Topology) -> bool:
    """Whether the ranks of this host already see different GPUs (srun --gpus-per-task, say)."""
    taken = [gpu for seen in topology.gpus_of_host for gpu in seen or ()]
    return None not in topology.gpus_of_host and len(taken) == len(set(taken))
