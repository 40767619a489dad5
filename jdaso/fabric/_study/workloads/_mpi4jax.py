"""mpi4jax: operations of MPI inside compiled programs; the clock and all else by mpi4py."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...._engines.mpi4jax import import_mpi4jax
from ._mpi import Mpi, Operation


class Mpi4jax(Mpi):
    """All ranks of the launch, each a JAX program of its own.

    Raises:
        ImportError: mpi4jax is missing, or was built for another MPI.
    """

    def __init__(self):
        super().__init__()
        self._ops, self._sum = import_mpi4jax(), self._mpi.SUM

    def _prepared(self, function: Callable[[jax.Array], jax.Array], send: np.ndarray) -> Operation:
        """Compiles a function of one array, which is already on the device."""
        step, own = jax.jit(function), jnp.array(send)
        return lambda: jax.block_until_ready(step(own))

    def allreduce(self, send: np.ndarray) -> Operation:
        """The sum of all nodes' numbers, on every node."""
        return self._prepared(partial(self._ops.allreduce, op=self._sum), send)

    def allgather(self, send: np.ndarray) -> Operation:
        """All nodes' numbers, on every node."""
        return self._prepared(lambda x: self._ops.allgather(x).ravel(), send)

    def reduce_scatter(self, send: np.ndarray) -> Operation:
        """Refuses: mpi4jax has no such operation; `lacks` reports this before a launch."""
        raise NotImplementedError("mpi4jax has no reduce-scatter. Take another library.")

    def alltoall(self, send: np.ndarray) -> Operation:
        """Each node's part of all nodes' numbers."""
        parts = (self.size, send.size // self.size)
        return self._prepared(lambda x: self._ops.alltoall(x.reshape(parts)).ravel(), send)

    def ping_pong(self, send: np.ndarray) -> Operation:
        """A message from node 0 to node 1 and back."""

        def exchange(x: jax.Array) -> jax.Array:
            if self.rank == 0:
                self._ops.send(x, 1)
                return self._ops.recv(x, 1)
            if self.rank == 1:
                found = self._ops.recv(x, 0)
                self._ops.send(found, 0)
                return found
            return x

        return self._prepared(exchange, send)

    def stream(self, send: np.ndarray, window: int) -> Operation:
        """A window of messages from node 0 to node 1, each of which blocks, and one answer."""

        def exchange(x: jax.Array) -> jax.Array:
            if self.rank == 0:
                for _ in range(window):
                    self._ops.send(x, 1)
                return self._ops.recv(x[:1], 1)
            if self.rank == 1:
                for _ in range(window):
                    x = self._ops.recv(x, 0)
                self._ops.send(x[:1], 0)
            return x

        return self._prepared(exchange, send)

    def mean(self, gradients: Any) -> Any:
        """The mean of all nodes' gradients, array by array; called in a compiled step."""
        summed = partial(self._ops.allreduce, op=self._sum)
        return jax.tree.map(lambda x: summed(x) / self.size, gradients)

    def chosen(self) -> dict[str, Any]:
        """Returns the versions of mpi4jax and of its MPI."""
        found, version = super().chosen(), importlib.metadata.version("mpi4jax")
        return {**found, "library": f"mpi4jax {version}, {found['library']}"}
