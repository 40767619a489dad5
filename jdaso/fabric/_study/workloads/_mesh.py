"""JAX's own processes: the operations of `_mpi`, compiled; over gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from ...._launch.environment import launched_rank, launched_ranks, local_ranks
from ..launch import COORDINATOR

Operation = Callable[[], jax.Array]


class Mesh:
    """All processes of the launch, one device each.

    Args:
        backend: "gloo" or "nccl".

    Raises:
        RuntimeError: JAX has no GPU for NCCL.
    """

    def __init__(self, backend: str):
        self.rank, self.size = launched_rank(), launched_ranks()
        if backend == "gloo":
            jax.config.update("jax_platforms", "cpu")  # also where there are GPUs
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        if self.size > 1:
            own = self.rank % local_ranks() if backend == "nccl" else None
            jax.distributed.initialize(
                os.environ[COORDINATOR], self.size, self.rank, local_device_ids=own
            )
        if backend == "nccl" and jax.default_backend() != "gpu":
            raise RuntimeError(
                f"NCCL needs a GPU, JAX has {jax.devices()[0].platform}. Install jax[cuda13]."
            )
        self._backend = backend
        self._mesh = jax.make_mesh((self.size,), ("node",))
        self._meet = self._prepared(
            partial(jax.lax.psum, axis_name="node"), np.zeros(1, np.float32)
        )
        self._largest = partial(jax.lax.pmax, axis_name="node")

    def _prepared(self, function: Callable[[jax.Array], jax.Array], send: np.ndarray) -> Operation:
        """Compiles a collective of one array per node."""
        spec = jax.P("node")
        placed = jax.NamedSharding(self._mesh, spec)
        shape = (self.size * send.size,)
        whole = jax.make_array_from_process_local_data(placed, send, shape)
        step = jax.jit(
            jax.shard_map(function, mesh=self._mesh, in_specs=spec, out_specs=spec, check_vma=False)
        )

        def call() -> jax.Array:  # the result stays on the device: its copy is not the network's
            return jax.block_until_ready(step(whole)).addressable_data(0)

        return call

    def allreduce(self, send: np.ndarray) -> Operation:
        """The sum of all nodes' numbers, on every node."""
        return self._prepared(partial(jax.lax.psum, axis_name="node"), send)

    def allgather(self, send: np.ndarray) -> Operation:
        """All nodes' numbers, on every node."""
        return self._prepared(partial(jax.lax.all_gather, axis_name="node", tiled=True), send)

    def reduce_scatter(self, send: np.ndarray) -> Operation:
        """Each node's part of the sum of all nodes' numbers."""
        return self._prepared(partial(jax.lax.psum_scatter, axis_name="node", tiled=True), send)

    def alltoall(self, send: np.ndarray) -> Operation:
        """Each node's part of all nodes' numbers."""
        parts = partial(
            jax.lax.all_to_all, axis_name="node", split_axis=0, concat_axis=0, tiled=True
        )
        return self._prepared(parts, send)

    def ping_pong(self, send: np.ndarray) -> Operation:
        """A message from node 0 to node 1 and back."""
        there = partial(jax.lax.ppermute, axis_name="node", perm=[(0, 1)])
        back = partial(jax.lax.ppermute, axis_name="node", perm=[(1, 0)])
        return self._prepared(lambda x: back(there(x)), send)

    def stream(self, send: np.ndarray, window: int) -> Operation:
        """A window of messages from node 0 to node 1."""

        def messages(x: jax.Array) -> jax.Array:
            move = partial(jax.lax.ppermute, axis_name="node", perm=[(0, 1)])
            return sum((move(x + k) for k in range(window)), start=0.0 * x)

        return self._prepared(messages, send)

    def barrier(self) -> None:
        """Waits for all nodes."""
        self._meet()

    def slowest(self, seconds: list[float]) -> list[float]:
        """Returns, for each iteration, the time of the slowest node."""
        if not seconds:
            return []
        found = self._prepared(self._largest, np.array(seconds, np.float32))()
        return [float(x) for x in np.asarray(found)]

    def chosen(self) -> dict[str, Any]:
        """Returns the platform of JAX's devices and its collectives."""
        platform = jax.devices()[0].platform
        return {"library": f"JAX {jax.__version__}, {self._backend}", "device": [platform]}

    def mean(self, gradients: Any) -> Any:
        """The mean of all nodes' gradients; called in a step on the mesh."""
        return jax.lax.pmean(gradients, "node")
