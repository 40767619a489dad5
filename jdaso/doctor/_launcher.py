"""What the launcher says of this rank, without asking MPI."""

from __future__ import annotations

import dataclasses
import os

from .._host import launched_ranks

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PMIX_RANK")
_MARKS = {"OMPI_COMM_WORLD_SIZE": "Open MPI", "HYDI_CONTROL_FD": "MPICH", "PMI_FD": "MPICH"}


@dataclasses.dataclass(frozen=True)
class Launch:
    """This rank among those that a launcher started.

    Attributes:
        rank: its number.
        size: how many there are; 1 without a launcher.
        vendor: whose launcher it is: ``MPICH``, ``Open MPI``, ``srun``; empty if not known.
    """

    rank: int
    size: int
    vendor: str

    @property
    def prefix(self) -> str:
        """How lines of this rank begin where the ranks cannot make one report."""
        return f"[rank {self.rank} of {self.size}] " if self.size > 1 else ""


def find_launch() -> Launch:
    """Reads the variables that launchers set."""
    rank = next((int(os.environ[name]) for name in _RANKS if os.environ.get(name)), 0)
    vendor = next((by for name, by in _MARKS.items() if name in os.environ), "")
    if not vendor and "SLURM_STEP_NUM_TASKS" in os.environ:
        vendor = "srun"
    size = launched_ranks()
    return Launch(rank if size > 1 else 0, size, vendor)


def binding(vendor: str, cores: int) -> str:
    """The launcher's options that give each rank so many cores of its own."""
    if vendor == "Open MPI":
        return f"--map-by slot:PE={cores} --bind-to core"
    if vendor == "srun":
        return f"--cpus-per-task={cores} --cpu-bind=cores"
    return f"-bind-to core:{cores}"
