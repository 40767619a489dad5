"""MPI itself, by mpi4py: operations on float32 numbers, each prepared once and then called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Operation = Callable[[], np.ndarray]
"""One call of a prepared operation; returns what has arrived on this node."""


class Mpi:
    """All ranks of the launch."""

    def __init__(self):
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()

    def allreduce(self, send: np.ndarray) -> Operation:
        """The sum of all nodes' numbers, on every node."""
        found = np.empty_like(send)
        return lambda: (self._comm.Allreduce(send, found), found)[1]

    def allgather(self, send: np.ndarray) -> Operation:
        """All nodes' numbers, on every node."""
        found = np.empty(send.size * self.size, send.dtype)
        return lambda: (self._comm.Allgather(send, found), found)[1]

    def reduce_scatter(self, send: np.ndarray) -> Operation:
        """Each node's part of the sum of all nodes' numbers."""
        found = np.empty(send.size // self.size, send.dtype)
        return lambda: (self._comm.Reduce_scatter_block(send, found), found)[1]

    def alltoall(self, send: np.ndarray) -> Operation:
        """Each node's part of all nodes' numbers."""
        found = np.empty_like(send)
        return lambda: (self._comm.Alltoall(send, found), found)[1]

    def ping_pong(self, send: np.ndarray) -> Operation:
        """A message from node 0 to node 1 and back."""
        found = np.empty_like(send)

        def exchange() -> np.ndarray:
            if self.rank == 0:
                self._comm.Send(send, 1)
                self._comm.Recv(found, 1)
            elif self.rank == 1:
                self._comm.Recv(found, 0)
                self._comm.Send(found, 0)
            return found

        return exchange

    def stream(self, send: np.ndarray, window: int) -> Operation:
        """A window of messages from node 0 to node 1, and one answer."""
        found, answer = np.empty_like(send), np.zeros(1, send.dtype)

        def exchange() -> np.ndarray:
            start = self._comm.Isend if self.rank == 0 else self._comm.Irecv
            if self.rank < 2:
                array = send if self.rank == 0 else found
                requests = [start(array, 1 - self.rank) for _ in range(window)]
                self._mpi.Request.Waitall(requests)
                if self.rank == 0:
                    self._comm.Recv(answer, 1)
                else:
                    self._comm.Send(answer, 0)
            return found

        return exchange

    def swap(self, faces: Sequence[tuple[int, int, int, np.ndarray, np.ndarray]]) -> None:
        """Exchanges arrays with neighbours: (node, tag to send, tag to receive, ours, theirs)."""
        requests = []
        for node, _, tag, _, theirs in faces:
            requests.append(self._comm.Irecv(theirs, node, tag))
        for node, tag, _, ours, _ in faces:
            requests.append(self._comm.Isend(ours, node, tag))
        self._mpi.Request.Waitall(requests)

    def barrier(self) -> None:
        """Waits for all nodes."""
        self._comm.Barrier()

    def slowest(self, seconds: list[float]) -> list[float]:
        """Returns, for each iteration, the time of the slowest node."""
        own, most = np.array(seconds, np.float64), np.empty(len(seconds), np.float64)
        self._comm.Allreduce(own, most, self._mpi.MAX)
        return most.tolist()

    def chosen(self) -> dict[str, Any]:
        """Returns the library's own account of its version and device."""
        lines = self._mpi.Get_library_version().strip("\0").splitlines()
        kept = [" ".join(line.split()) for line in lines if line.strip()]
        devices = [line for line in kept if "Device" in line or "netmod" in line.lower()]
        return {"library": kept[0], "device": devices}
