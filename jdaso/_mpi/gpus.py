"""GPUs of a host, divided among the nodes that run on it."""

from __future__ import annotations

import os

from .._base.errors import NodeError
from .._launch.gpus import visible_gpus
from .topology import Topology


def share_out(gpus: list[str], rank: int, ranks: int, *, share: bool = False) -> list[str]:
    """The GPUs of one of several ranks on a host: as equal in number as possible, none twice.

    Args:
        gpus: all GPUs of the host.
        rank: this rank's number among those on the host.
        ranks: the number of ranks on the host.
        share: whether ranks may use the same GPU if there are too few.

    Raises:
        ValueError: fewer GPUs than ranks, and `share` is False.
    """
    if len(gpus) < ranks:
        if not share:
            raise ValueError(
                f"{ranks} nodes share this host but it has {len(gpus)} GPU(s) ({', '.join(gpus)}). "
                "Start fewer ranks per host, or allow it with Session(share_gpus=True)."
            )
        return [gpus[rank % len(gpus)]]
    return gpus[rank * len(gpus) // ranks : (rank + 1) * len(gpus) // ranks]


def claim_gpus(topology: Topology, *, share: bool, on_cpus: bool, started: bool) -> None:
    """Restricts this process to its own GPUs.

    Args:
        topology: the nodes.
        share: whether nodes may use the same GPU.
        on_cpus: whether JAX computes on CPUs; then no GPU is claimed.
        started: whether JAX has made its devices.

    Raises:
        NodeError: fewer GPUs than nodes on this host, or JAX has started already.
    """
    if topology.local_size == 1 or on_cpus:
        return
    gpus = visible_gpus() or _seen_by_others(topology)
    if not gpus:
        return
    if _assigned_by_launcher(topology):
        return
    try:
        mine, ranks = _own_part(topology, gpus, share=share)
    except ValueError as error:
        raise NodeError(f"{topology.prefix()} {error}") from error
    if started:
        if mine == gpus:  # assigned by the process's previous session
            return
        raise NodeError(
            f"{topology.prefix()} JAX has started before jdaso could share out the GPUs of this "
            f"host among its {topology.local_size} nodes. Make the Session before the first use of "
            "a JAX device, or set CUDA_VISIBLE_DEVICES for each rank."
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    if len(gpus) < ranks:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _seen_by_others(topology: Topology) -> list[str]:
    """Names GPUs that nvidia-smi lists to other ranks of this host, if it fails for this one."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:  # an empty one, say: this rank is to have none
        return []
    most = max((len(seen or ()) for seen in topology.gpus_of_host), default=0)
    return [str(number) for number in range(most)]


def _own_part(topology: Topology, gpus: list[str], *, share: bool) -> tuple[list[str], int]:
    """Returns this rank's GPUs, and the number of ranks that divide the same ones.

    Launchers may show ranks the same GPUs in another order, or different GPUs to groups of ranks.

    Raises:
        ValueError: see `share_out`; or ranks see GPUs of which only some are the same.
    """
    everyone, number = topology.gpus_of_host, topology.local_rank
    own = everyone[number] if number < len(everyone) else None
    if own is None or None in everyone or len(own) != len(gpus):  # only the order is known
        without = [rank for rank, seen in enumerate(everyone) if seen == ()]
        ranks, place = topology.local_size - len(without), number - sum(r < number for r in without)
        return share_out(gpus, place, ranks, share=share), ranks
    rivals = [rank for rank, seen in enumerate(everyone) if set(own) & {*(seen or ())}]
    for rank in rivals:
        if {*(everyone[rank] or ())} != set(own):
            raise ValueError(
                f"Ranks of this host see GPUs of which only some are the same: {', '.join(own)} "
                f"here, and {', '.join(everyone[rank] or ())} on another rank. Show all of them to "
                "all ranks, or set CUDA_VISIBLE_DEVICES for each rank."
            )
    place, in_order = rivals.index(number), list(everyone[rivals[0]] or ())
    mine = share_out(in_order, place, len(rivals), share=share)
    return [gpus[own.index(gpu)] for gpu in mine], len(rivals)


def _assigned_by_launcher(topology: Topology) -> bool:
    """Returns whether this host's ranks already see different GPUs (srun --gpus-per-task)."""
    taken = [gpu for seen in topology.gpus_of_host for gpu in seen or ()]
    return None not in topology.gpus_of_host and len(taken) == len(set(taken))
