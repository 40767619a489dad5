"""The places of a step's arrays: on a node of its own, or on a mesh of all nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

Step = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
"""Parameters, state and number of a step -> parameters, state, loss."""


@runtime_checkable
class StepDevices(Protocol):
    """All that a step needs from its devices."""

    calls_host: bool

    def node(self) -> Any:
        """Returns the number of the node; called in the compiled step."""

    def placed(self, tree: Any) -> Any:
        """Puts arrays where the step wants them, the same on all nodes."""

    def state(self, tx: Any, params: Any) -> Any:
        """Returns an optimizer's first state."""

    def compiled(self, step: Step) -> Step:
        """Compiles a step, which may take the memory of its parameters and state."""
        ...


class Own:
    """A node that is a JAX program by itself."""

    calls_host = True

    def __init__(self, node: int):
        self._node = node

    def node(self) -> Any:
        """Returns the node's number."""
        return self._node

    def placed(self, tree: Any) -> Any:
        """Copies arrays to the device."""
        return jax.tree.map(jnp.array, tree)

    def state(self, tx: Any, params: Any) -> Any:
        """Returns the state of this node."""
        return tx.init(params)

    def compiled(self, step: Step) -> Step:
        """Compiles a step for the node's device."""
        return jax.jit(step, donate_argnums=(0, 1))


class OneProgram:
    """Nodes that are one JAX program, a device each."""

    calls_host = False

    def __init__(self, nodes: int):
        self._mesh = jax.make_mesh((nodes,), ("node",), axis_types=(jax.sharding.AxisType.Auto,))
        self._copies = jax.NamedSharding(self._mesh, jax.P())

    def node(self) -> Any:
        """Returns the device's place on the axis of nodes."""
        return jax.lax.axis_index("node")

    def placed(self, tree: Any) -> Any:
        """Puts a copy on every node."""
        return jax.device_put(tree, self._copies, may_alias=False)

    def state(self, tx: Any, params: Any) -> Any:
        """Returns copies of the state."""
        return jax.jit(tx.init, out_shardings=self._copies)(params)

    def compiled(self, step: Step) -> Step:
        """Compiles a step, which each node runs on its own copies."""
        every = partial(jax.shard_map, mesh=self._mesh, in_specs=jax.P(), out_specs=jax.P())
        return jax.jit(every(step, check_vma=False), donate_argnums=(0, 1))
