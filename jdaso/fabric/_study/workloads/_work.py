"""A step's work in JAX: a network that is trained, or a time that passes in its place."""

from __future__ import annotations

import time
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from ...._jax.host_call import host_call
from ._given import Given

_LEAVES = 16


@runtime_checkable
class StepWork(Protocol):
    """Loss and gradients of a step."""

    def params(self) -> Any:
        """Returns the first parameters, the same on all nodes."""

    def wait(self) -> None:
        """Takes the time of a step that passes outside the compiled step."""

    def gradient(self, params: Any, n: jax.Array, node: Any) -> tuple[jax.Array, Any]:
        """Returns loss and gradients of step n on a node; called in the compiled step."""
        ...


class Paced:
    """A time, during which no core is used, and gradients of every parameter.

    On node p of P they are ``(p + 1) / P`` of the parameters, so that their mean shows whether all
    nodes are in it.

    Args:
        shapes: of the parameters.
        seconds: of a step.
        nodes: P.
        in_step: whether the time passes in the compiled step. A program of several processes
            cannot call the host; it waits before the step.
    """

    def __init__(self, shapes: Any, seconds: float, nodes: int, *, in_step: bool):
        self._shapes, self._seconds, self._nodes = shapes, seconds, nodes
        self._in_step = in_step

    def params(self) -> Any:
        """Returns arrays of the shapes."""
        leaves, tree = jax.tree.flatten(self._shapes)
        return tree.unflatten(np.full(x.shape, 0.5 + k, x.dtype) for k, x in enumerate(leaves))

    def wait(self) -> None:
        """Waits, unless the step does."""
        if not self._in_step:
            time.sleep(self._seconds)

    def _pause(self, _: Any) -> np.ndarray:
        time.sleep(self._seconds)
        return np.zeros((), np.float32)

    def gradient(self, params: Any, n: jax.Array, node: Any) -> tuple[jax.Array, Any]:
        """Returns zero, which no compiler can foresee, and gradients."""
        if self._in_step:
            zero = host_call(self._pause, jax.ShapeDtypeStruct((), jnp.float32), n)
        else:
            zero = (n < 0).astype(jnp.float32)
        share = (node + 1) / jnp.float32(self._nodes)

        def gradients(params: Any) -> Any:
            return jax.tree.map(lambda x: share * x + zero, params)

        # In memory, as a network's are: a condition keeps XLA from fusing them with the optimizer.
        return zero, jax.lax.cond(zero < 1, gradients, lambda params: params, params)


class Real:
    """A network on batches made from a seed: another one for each step and node."""

    def __init__(self, network: Any, batch: int, size: int):
        self._network, self._batch, self._size = network, batch, size

    def params(self) -> Any:
        """Returns values to begin with."""
        from ._networks import first_values

        return first_values(self._network.shapes())

    def wait(self) -> None:
        """Does nothing: the step takes its time."""

    def gradient(self, params: Any, n: jax.Array, node: Any) -> tuple[jax.Array, Any]:
        """Returns loss and gradients, of a forward and a backward pass."""
        from ._networks import SEED

        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), node), n)
        batch = self._network.batch(key, self._batch, self._size)
        return jax.value_and_grad(self._network.loss)(params, batch)


def work_of(about: Given, nodes: int, *, in_step: bool) -> StepWork:
    """Returns the work of a cell; see `Paced` for `in_step`."""
    if about.factors.get("compute") != "real":
        return Paced(shapes_of(about), about.step_seconds, nodes, in_step=in_step)
    from ._networks import network_of

    network = network_of(about.factors["model"])
    size = about.settings["image"] or network.size
    return Real(network, about.batch, size if about.model.pixels else about.settings["tokens"])


def shapes_of(about: Given) -> Any:
    """Returns the shapes of the model's parameters; of the model "paced" 16 equal arrays."""
    if about.model.parameters:
        from ._networks import network_of

        return network_of(about.factors["model"]).shapes()
    each = max(1, about.settings["parameters"] // _LEAVES)
    return [jax.ShapeDtypeStruct((each,), jnp.float32)] * _LEAVES
