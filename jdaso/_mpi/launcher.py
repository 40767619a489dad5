"""Checks that ranks were started by a launcher of the MPI library that they use."""

from __future__ import annotations

import socket
from typing import Any

from .._base.errors import NodeError
from .._launch.environment import claimed_by, launched_ranks


def check_library(error: Exception) -> None:
    """Raises if a launcher started several ranks, but mpi4py cannot be imported.

    Args:
        error: mpi4py's own.

    Raises:
        NodeError: on each of these ranks, with both messages.
    """
    launched = launched_ranks()
    if launched > 1:
        raise NodeError(
            f"[host {socket.gethostname()}] A launcher started {launched} ranks, but mpi4py cannot "
            f"be imported ({error}). Install an MPI library that matches the launcher: "
            'pip install "jdaso[mpich]", then start with that environment\'s mpiexec.'
        ) from error


def check_launcher(MPI: Any) -> None:
    """Raises if a launcher started several ranks, but MPI gives each of them a world of its own.

    Raises:
        NodeError: on each of these ranks: the launcher belongs to another MPI than the library.
    """
    launched = launched_ranks()
    if MPI.COMM_WORLD.Get_size() == 1 and launched > 1:
        library = " ".join(MPI.Get_library_version().split(",")[0].splitlines()[0].split())
        raise NodeError(
            f"[host {socket.gethostname()}] The launcher started {launched} ranks ({claimed_by()} "
            "in the environment), but each sees only itself: mpiexec belongs to another MPI than "
            f"mpi4py's ({library}). Start with the mpiexec of the environment that holds the MPI "
            "library, or with an srun --mpi=... that it supports; for separate runs of one node "
            "each, use Session(comm=MPI.COMM_SELF)."
        )
