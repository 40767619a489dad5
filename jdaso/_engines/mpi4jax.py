"""Engine ``mpi4jax``: jitted mpi4jax programs on a CPU device of the host.

mpi4jax has no non-blocking operations (its issues 206 and 269). The channel's thread runs these
programs, and MPI's blocking call blocks only that thread.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import numpy as np

from .._compat import private_cpu_device


def import_mpi4jax() -> ModuleType:
    """Returns mpi4jax, or raises an error that tells what to install.

    Raises:
        ImportError: it is missing, or was built for another MPI than mpi4py uses.
    """
    try:
        import mpi4jax
    except (ImportError, RuntimeError) as error:  # RuntimeError if the ABI differs
        from mpi4py import MPI

        library = MPI.Get_library_version().split("\n")[0].split(",")[0].strip()
        if isinstance(error, ModuleNotFoundError) and error.name == "mpi4jax":
            what = "mpi4jax is not installed"
            cure = 'pip install --no-cache-dir --no-binary mpi4jax "jdaso[mpi4jax]"'
        else:
            what = (
                f"mpi4jax cannot be loaded with {library}; it was built for another MPI ({error})"
            )
            cure = (
                "pip install --force-reinstall --no-deps --no-cache-dir --no-binary mpi4jax mpi4jax"
            )
        raise ImportError(
            f"{what}. Build it against the MPI in use, with that MPI's mpicc first on PATH: "
            f'{cure}; or use Session(engine="mpi4py"), which needs no compiler.'
        ) from error
    return mpi4jax


class Mpi4jaxTransport:
    """Runs mpi4jax's all-to-all and all-gather on a CPU device that nothing else uses.

    On failure: MPI errors end the job on all nodes at once; mpi4jax cannot return them.
    """

    def __init__(self, comm: Any):
        mpi4jax = import_mpi4jax()
        self._cpu = private_cpu_device()
        self._all_to_all = jax.jit(lambda rows: mpi4jax.alltoall(rows, comm=comm))
        self._all_gather = jax.jit(lambda row: mpi4jax.allgather(row, comm=comm))

    def all_to_all(self, rows: np.ndarray) -> np.ndarray:
        """See `Transport`."""
        return np.asarray(self._all_to_all(jax.device_put(rows, self._cpu)))

    def all_gather(self, row: np.ndarray, out: np.ndarray) -> None:
        """See `Transport`."""
        np.copyto(out, self._all_gather(jax.device_put(row, self._cpu)))
