"""The launcher's facts about this rank, found without MPI."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

from .._launch.environment import claimed_by, launched_rank, launched_ranks, left_over, rank_above
from ._findings import Finding

_MARKS = {"OMPI_COMM_WORLD_SIZE": "Open MPI", "HYDI_CONTROL_FD": "MPICH", "PMI_FD": "MPICH"}


@dataclasses.dataclass(frozen=True)
class LaunchedRank:
    """This rank among those that a launcher started.

    Attributes:
        rank: its number.
        size: number of ranks; 1 without a launcher.
        vendor: vendor of the launcher: ``MPICH``, ``Open MPI``, ``srun``; empty if not known.
    """

    rank: int
    size: int
    vendor: str

    @property
    def prefix(self) -> str:
        """The beginning of this rank's lines if the ranks cannot make one report."""
        return f"[rank {self.rank} of {self.size}] " if self.size > 1 else ""


def find_launch() -> LaunchedRank:
    """Reads the variables that launchers set."""
    size = launched_ranks()
    if size == 1 and not claimed_by():  # leftover variables name no launcher
        return LaunchedRank(0, 1, "")
    vendor = next((by for name, by in _MARKS.items() if name in os.environ), "")
    if not vendor and "SLURM_STEP_NUM_TASKS" in os.environ:
        vendor = "srun"
    return LaunchedRank(launched_rank() if size > 1 else 0, size, vendor)


def left_behind() -> Iterator[Finding]:
    """Yields variables of a launcher that did not start this process; jdaso ignores them."""
    if (above := rank_above()) is not None:
        found = f"rank {above[0]} (process {above[1]}) started this process, which is not a rank"
        yield Finding("launcher", found)
    elif name := left_over():
        remedy = f"unset {name.partition('=')[0]}, for other MPI programs; jdaso leaves it out."
        yield Finding("launcher", f"none, but {name} is left in the environment", True, remedy)


def binding(vendor: str, cores: int) -> str:
    """Returns the launcher's options that give each rank `cores` cores of its own."""
    if vendor == "Open MPI":
        return f"--map-by slot:PE={cores} --bind-to core"
    if vendor == "srun":
        return f"--cpus-per-task={cores} --cpu-bind=cores"
    return f"-bind-to core:{cores}"
