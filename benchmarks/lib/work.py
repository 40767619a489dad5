"""The work of one step before its optimizer: paced or real, a loss and its gradients."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.lib.tasks import TASKS
from jdaso._jax.host_call import host_call

LEAVES = 16


class Pace:
    """Called by a step on the host; returns after the step's time, and no core is used."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self, _: Any) -> np.ndarray:
        time.sleep(self.seconds)
        return np.zeros((), np.float32)


class Paced:
    """Paced work, as on an accelerator: a step takes a given time, and gives all gradients."""

    def __init__(self, parameters: int):
        self.parameters, self.pace = parameters, Pace()

    def params(self) -> Any:
        """Makes parameters."""
        each = self.parameters // LEAVES
        return [jnp.full(each, 0.5 + k, jnp.float32) for k in range(LEAVES)]

    def gradient(self, params: Any, n: Any, node: Any, *, paced: bool = True) -> tuple[Any, Any]:
        """Loss and gradients of step n; with ``paced=False`` the caller waits itself.

        (A program of several processes may not call the host.)
        """
        del node
        zero = jnp.float32(0)
        if paced:
            zero = host_call(self.pace, jax.ShapeDtypeStruct((), jnp.float32), n)

        def gradients(params: Any) -> Any:
            return jax.tree.map(lambda x: 1e-3 * x + zero, params)

        # In memory, as a network's are: a condition keeps XLA from fusing them with the optimizer.
        return zero, jax.lax.cond(zero < 1, gradients, lambda params: params, params)


class PacedOnMesh(Paced):
    """The same on all devices of a node, of one process or several: each takes the step's time."""

    def __init__(self, parameters: int, *, divided: bool):
        super().__init__(parameters)
        auto = (jax.sharding.AxisType.Auto,)
        self.mesh = jax.make_mesh((jax.device_count(),), ("local",), axis_types=auto)
        self.placed = jax.NamedSharding(self.mesh, jax.P("local") if divided else jax.P())

    def params(self) -> Any:
        """Makes parameters, divided over the devices or with a copy on each."""
        make = jax.jit(super().params, out_shardings=self.placed)
        return make()

    def gradient(self, params: Any, n: Any, node: Any, *, paced: bool = True) -> tuple[Any, Any]:
        """Loss and gradients of step n; the loss is the mean over the devices, as of real ones."""
        del node, paced

        @partial(jax.shard_map, mesh=self.mesh, in_specs=jax.P(), out_specs=jax.P())
        def loss(n: Any) -> Any:
            shape = jax.ShapeDtypeStruct((), jnp.float32)
            return jax.lax.pmean(host_call(self.pace, shape, n, joined=True), "local")

        zero = loss(n)

        def gradients(params: Any) -> Any:
            return jax.tree.map(lambda x: 1e-3 * x + zero, params)

        return zero, jax.lax.cond(zero < 1, gradients, lambda params: params, params)


class Real:
    """The processor computes: a task of `tasks`, the same batch on every node's turn."""

    def __init__(self, task: str, nodes: int, batch: int):
        self.task, self.nodes, self.batch, self.pace = TASKS[task](), nodes, batch, Pace()

    def params(self) -> Any:
        """Makes parameters."""
        return self.task.init(jax.random.key(0))

    def gradient(self, params: Any, n: Any, node: Any, *, paced: bool = True) -> tuple[Any, Any]:
        """Loss and gradients of step n, over this node's part of the batch."""
        del paced
        first = (n * self.nodes + node) * self.batch
        chosen = (first + jnp.arange(self.batch)) % self.task.examples
        return jax.value_and_grad(self.task.loss)(params, self.task.arrays, chosen)


class Kind(NamedTuple):
    """A kind of work: "paced", with its number of parameters, or a task and its batch per node."""

    name: str
    parameters: int
    batch: int

    def make(self, nodes: int) -> Paced | Real:
        """The work itself, in the process that does it."""
        if self.name == "paced":
            return Paced(self.parameters)
        return Real(self.name, nodes, self.batch)


class OnMesh(NamedTuple):
    """Paced work on all devices of a node; parameters are divided over them, or each has all."""

    parameters: int
    divided: bool

    def make(self, nodes: int) -> PacedOnMesh:
        """The work itself, in a process that has joined the others of its node."""
        del nodes
        return PacedOnMesh(self.parameters, divided=self.divided)
