"""Engine ``mpi4jax``: jitted mpi4jax programs on CPU devices of the host.

mpi4jax has no non-blocking operations (its issues 206 and 269), and MPI's blocking calls block only
the thread that makes them. On fast links the channel's thread makes them, one chunk after another
(`Mpi4jaxReduce`). A slow link would idle for a third to half of the time, mostly while MPI asks
before it sends a large message. There, `lanes` keep it busy.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import numpy as np

from .._jax.cpus import private_cpu_device
from .._payload.wire import Wire
from .base import SumRows, heads_of


def import_mpi4jax() -> ModuleType:
    """Returns mpi4jax, or raises an error with the package to install.

    Raises:
        ImportError: mpi4jax is missing, or was built for another MPI than mpi4py uses.
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


class Mpi4jaxReduce:
    """Reduces a chunk with mpi4jax's all-to-all and all-gather, on a CPU device of its own.

    Each node sums its part and gathers the other parts: the bytes of a ring, the same bits on all.
    Called only by the channel's thread, on links that `lanes` would not fill better.

    On failure: MPI errors end the job on all nodes at once; mpi4jax cannot return them.
    """

    def __init__(self, comm: Any, wire: Wire, sums: SumRows):
        mpi4jax = import_mpi4jax()
        self._cpu, self._wire, self._sums = private_cpu_device(), wire, sums
        self._node = comm.Get_rank()
        self._all_to_all = jax.jit(lambda rows: mpi4jax.alltoall(rows, comm=comm))
        self._all_gather = jax.jit(lambda row: mpi4jax.allgather(row, comm=comm))

    def __call__(
        self, rows: np.ndarray, place: np.ndarray, headed: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Sends row p of `rows` to node p; see `ReduceChunk`."""
        received = np.asarray(self._all_to_all(jax.device_put(rows, self._cpu)))
        residual = self._sums(received, place[self._node])
        heads = heads_of(self._wire, received) if headed else None
        np.copyto(place, self._all_gather(jax.device_put(place[self._node], self._cpu)))
        return residual, heads
