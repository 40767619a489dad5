"""Numbers that an optimizer needs from all ranks of a pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._jax.ffi.functions import forget
from ..._mpi.requests import byte, finish
from ..._nodes.heartbeat import CALLS
from ..._nodes.wait import Wait
from .grid import Grid


class Gatherer:
    """Gathers an array from each rank of a pipeline: ``[partitions, ...]``.

    Any thread may call the gatherer, but all ranks must call it in the same order.

    Args:
        grid: the nodes, which all create their `Gatherer` together.
    """

    def __init__(self, grid: Grid):
        self._control, self._partitions = grid.session.control, grid.partitions
        first = grid.replica * grid.partitions
        self._nodes = range(first, first + grid.partitions)
        self._comm: Any = None
        if grid.partitions > 1:
            comm = grid.session.topology.comm
            self._comm = self._control.split(comm, grid.replica, grid.partition)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """Waits for the arrays of all ranks, and returns them."""
        if self._comm is None:
            return array[None]
        out = np.empty((self._partitions, *array.shape), array.dtype)
        request = self._comm.Iallgather([array, byte()], [out, byte()])
        about = self._control.known, "sum over partitions", "waits for sums over all partitions"
        wait = Wait(*about, call=0, column=CALLS, nodes=self._nodes)
        with self._control.explained():
            finish(request, wait.check, array, out, most_pause=2e-4)
        return out

    def free(self) -> None:
        """Frees the communicator; all nodes call this together, once their steps have ended."""
        text = "This pipeline was closed, and a compiled step still uses it."
        forget(self, self._control.error(text))
        if self._comm is not None:
            self._control.release(self._comm)
