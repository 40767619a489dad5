"""The bandwidth of the links between nodes."""

from __future__ import annotations

import time

import numpy as np

from .._mpi.requests import byte
from .control import Control

_TRIAL_BYTES, _TRIALS = 2 * 2**20, 3
"""Size and number of the messages that measure a link: 50 ms at 1 Gbit/s."""


class Links:
    """Measures the links between neighbors, once.

    Args:
        control: the nodes.
        everyone: all ranks.
    """

    def __init__(self, control: Control, everyone: Control):
        self._control, self._everyone = control, everyone
        self._bytes_per_second: float | None = None

    def bytes_per_second(self) -> float:
        """Bandwidth of the slowest link between neighbors, with both directions in use.

        Measured at the first call, which is collective; the best of a few; the same on all ranks.
        """
        if self._bytes_per_second is None:
            comm, what = self._control.duplicate().comm, "measure the links"
            node, nodes = comm.Get_rank(), comm.Get_size()
            send, recv = np.zeros((2, _TRIAL_BYTES), np.uint8)
            seconds = np.inf
            for _ in range(_TRIALS):
                begin = time.perf_counter()
                left = comm.Irecv([recv, byte()], (node - 1) % nodes)
                right = comm.Isend([send, byte()], (node + 1) % nodes)
                for request in (left, right):
                    self._control.wait(request, what, send, recv, most_pause=1e-4)
                seconds = min(seconds, time.perf_counter() - begin)
            slowest = self._everyone.allgather(what, np.array([seconds])).max()
            self._bytes_per_second = float(_TRIAL_BYTES / slowest)
        return self._bytes_per_second
