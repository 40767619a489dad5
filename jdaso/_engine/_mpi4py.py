"""Engine ``mpi4py``: non-blocking MPI on NumPy buffers, polled with a back-off.

Errors are raised, not aborted; every wait can be left when another node fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._topology import poll
from .._types import NodeError


class Mpi4pyTransport:
    """All-to-all and all-gather through mpi4py; result buffers are allocated once a shape."""

    def __init__(self, comm: Any, check: Callable[[], None], limit_seconds: float):
        from mpi4py import MPI

        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._comm, self._check, self._limit = comm, check, limit_seconds
        self._received: dict[tuple[int, ...], np.ndarray] = {}

    def all_to_all(self, rows: np.ndarray) -> np.ndarray:
        """See `Transport`."""
        out = self._buffer(rows.shape, rows.dtype)
        self._finish(self._comm.Ialltoall(_bytes(rows), _bytes(out)))
        return out

    def all_gather(self, row: np.ndarray, out: np.ndarray) -> None:
        """See `Transport`."""
        self._finish(self._comm.Iallgather(_bytes(row), _bytes(out)))

    def _buffer(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if shape not in self._received:
            self._received[shape] = np.empty(shape, dtype)
        return self._received[shape]

    def _finish(self, request: Any) -> None:
        if not poll(request.Test, self._check, self._limit):
            raise NodeError(
                f"An exchange did not end within {self._limit:g} s. Look for a node that is stuck; "
                "raise Session(timeout_seconds=...) if one is only slow."
            )


def _bytes(array: np.ndarray) -> list[Any]:
    from mpi4py import MPI

    return [array.view(np.uint8), MPI.BYTE]
