"""Ends MPI normally, or the whole job at once.

`end_job` only records that the job ends with this process; `_nodes.exit` carries that out.
"""

import ctypes

_state = {"ends": False}


def end_job() -> None:
    """Makes the job end with this process: MPI_Finalize would wait for a node that never comes."""
    _state["ends"] = True


def ends_job() -> bool:
    """Returns whether the job ends with this process."""
    return _state["ends"]


def spare_job() -> None:
    """Undoes `end_job`, in a forked process, which is no rank."""
    _state["ends"] = False


def abort() -> None:
    """Ends all ranks of the job at once, this one included."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(1)


def finalize() -> None:
    """Calls MPI_Finalize without holding Python's lock, unlike mpi4py's own call."""
    from mpi4py import MPI

    ctypes.CDLL(MPI.__file__).MPI_Finalize()
