"""PyTorch's processes: torch.distributed over gloo."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.distributed as dist  # pyright: ignore[reportMissingImports]

from ...._launch.environment import launched_rank, launched_ranks
from ..launch import COORDINATOR

Operation = Callable[[], np.ndarray]


class Torch:
    """All processes of the launch."""

    def __init__(self):
        self.rank, self.size = launched_rank(), launched_ranks()
        meeting = f"tcp://{os.environ[COORDINATOR]}"
        dist.init_process_group("gloo", init_method=meeting, rank=self.rank, world_size=self.size)
        atexit.register(dist.destroy_process_group)  # its threads would end the process

    def allreduce(self, send: np.ndarray) -> Operation:
        """The sum of all nodes' numbers, on every node; formed in place, in a copy."""
        given, found = torch.from_numpy(send), torch.empty(send.size)

        def call() -> np.ndarray:
            dist.all_reduce(found.copy_(given))
            return found.numpy()

        return call

    def allgather(self, send: np.ndarray) -> Operation:
        """All nodes' numbers, on every node."""
        given, found = torch.from_numpy(send), torch.empty(self.size * send.size)
        parts = list(found.chunk(self.size))
        return lambda: (dist.all_gather(parts, given), found.numpy())[1]

    def reduce_scatter(self, send: np.ndarray) -> Operation:
        """Each node's part of the sum of all nodes' numbers."""
        parts = list(torch.from_numpy(send).chunk(self.size))
        found = torch.empty(send.size // self.size)
        return lambda: (dist.reduce_scatter(found, parts), found.numpy())[1]

    def alltoall(self, send: np.ndarray) -> Operation:
        """Each node's part of all nodes' numbers."""
        given, found = torch.from_numpy(send), torch.empty(send.size)
        return lambda: (dist.all_to_all_single(found, given), found.numpy())[1]

    def ping_pong(self, send: np.ndarray) -> Operation:
        """A message from node 0 to node 1 and back."""
        given, found = torch.from_numpy(send), torch.empty(send.size)

        def exchange() -> np.ndarray:
            if self.rank == 0:
                dist.send(given, 1)
                dist.recv(found, 1)
            elif self.rank == 1:
                dist.recv(found, 0)
                dist.send(found, 0)
            return found.numpy()

        return exchange

    def stream(self, send: np.ndarray, window: int) -> Operation:
        """A window of messages from node 0 to node 1, and one answer."""
        given, found = torch.from_numpy(send), torch.empty(send.size)
        answer = torch.zeros(1)

        def exchange() -> np.ndarray:
            if self.rank < 2:
                start = dist.isend if self.rank == 0 else dist.irecv
                array = given if self.rank == 0 else found
                for work in [start(array, 1 - self.rank) for _ in range(window)]:
                    work.wait()
                (dist.recv if self.rank == 0 else dist.send)(answer, 1 - self.rank)
            return found.numpy()

        return exchange

    def barrier(self) -> None:
        """Waits for all nodes."""
        dist.barrier()

    def slowest(self, seconds: list[float]) -> list[float]:
        """Returns, for each iteration, the time of the slowest node."""
        most = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return most.tolist()

    def chosen(self) -> dict[str, Any]:
        """Returns PyTorch's version and its backend."""
        return {"library": f"PyTorch {torch.__version__}, gloo", "device": ["cpu"]}
