"""The hosts that a scheduler has given to this process, and those of each launch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .._emulate.cluster import Cluster
from .checks import StudyError
from .chosen import ChosenFabric
from .crossing import Cell
from .declaration import Study

_ASK_SECONDS = 30.0


def allocated_hosts() -> tuple[str, ...]:
    """Returns the hosts of a Slurm or PBS allocation, in its order; none outside of one.

    Raises:
        StudyError: Slurm does not give the hosts of its list.
    """
    if listed := os.environ.get("SLURM_JOB_NODELIST"):
        return _hosts_of_slurm(listed)
    file = Path(os.environ.get("PBS_NODEFILE") or os.devnull)
    return tuple(dict.fromkeys(file.read_text().split())) if file.exists() else ()


def _hosts_of_slurm(listed: str) -> tuple[str, ...]:
    """The hosts of a list such as ``n[01-03,07]``, as Slurm itself reads it."""
    asked = ["scontrol", "show", "hostnames", listed]
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise StudyError(
            f"SLURM_JOB_NODELIST is {listed}, but {' '.join(asked[:3])} does not give its hosts "
            f"({error}). Run the study where Slurm's commands work, or unset the variable."
        ) from None
    return tuple(done.stdout.split())


def hosts_of(
    cell: Cell, fabric: ChosenFabric, cluster: Cluster | None, allocated: Sequence[str]
) -> tuple[str, ...]:
    """Returns a host for each node of a cell; none: all nodes are on this machine.

    The emulated ones if there are any, else those that the fabric names, else those of the
    allocation, from its first on.
    """
    hosts = cluster.hosts if cluster else fabric.hosts or allocated
    return tuple(hosts[: int(cell.factors["nodes"])])


def require_hosts(study: Study, allocated: Sequence[str]) -> None:
    """Raises unless there is a host for every node of every cell, and limits reach all hosts.

    Raises:
        StudyError: the allocation has too few, or a limit would not hold on other hosts.
    """
    for cell in study.cells:
        fabric, nodes = study.fabrics[str(cell.factors["fabric"])], int(cell.factors["nodes"])
        hosts = () if fabric.rate else hosts_of(cell, fabric, None, allocated)
        if hosts and len(hosts) < nodes:
            raise StudyError(
                f"the cell {cell} needs {nodes} nodes, the allocation has {len(allocated)}: "
                f"{', '.join(allocated)}. Ask the scheduler for {nodes}, or exclude the cell."
            )
        if hosts and study.limit_bytes:
            raise StudyError(
                f"limit_bytes holds on this machine alone, got {study.limit_bytes} for ranks on "
                f"{', '.join(hosts)}. Leave it out, and let the scheduler limit the job."
            )
