"""Ends MPI normally, or the whole job at once.

`end_job` only records that the job ends with this process; `_nodes.exit` carries that out.
"""

import ctypes
import sys

_state = {"ends": False}


def end_job() -> None:
    """Makes the job end with this process: MPI_Finalize would wait for a node that never comes."""
    _state["ends"] = True


def ends_job() -> bool:
    """Returns whether the job ends with this process."""
    return _state["ends"]


def spare_job() -> None:
    """Undoes `end_job` in a forked process, which is not a rank."""
    _state["ends"] = False


def abort() -> None:
    """Ends all ranks of the job at once, this one included."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(1)


def abort_if_started() -> None:
    """Ends all ranks of the job at once if this process has started MPI and not finalized it."""
    library = sys.modules.get("mpi4py.MPI")
    if library is not None and library.Is_initialized() and not library.Is_finalized():
        library.COMM_WORLD.Abort(1)


def finalize() -> None:
    """Calls MPI_Finalize without holding Python's lock, unlike mpi4py's own call."""
    from mpi4py import MPI

    ctypes.CDLL(MPI.__file__).MPI_Finalize()
