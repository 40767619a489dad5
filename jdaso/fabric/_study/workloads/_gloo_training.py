"""Steps of paced training in JAX's own processes: gradients are averaged in the step (`pmean`)."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ._given import Given, give
from ._gloo import Gloo
from ._timing import measure

_LEAVES = 16


class Steps:
    """Steps of all processes on one mesh, or of each alone."""

    def __init__(self, nodes: int, parameters: int, seconds: float, *, averages: bool):
        self._seconds, self._averages = seconds, averages
        self._inner = optax.sgd(1e-3, momentum=0.9)
        mesh = jax.make_mesh((nodes,), ("node",), axis_types=(jax.sharding.AxisType.Auto,))
        each = max(1, parameters // _LEAVES)
        params = [np.full(each, 0.5 + k, np.float32) for k in range(_LEAVES)]
        copies = jax.NamedSharding(mesh, jax.P())
        self._params = jax.device_put(params, copies)
        self._state = jax.jit(self._inner.init, out_shardings=copies)(self._params)
        every = partial(jax.shard_map, mesh=mesh, in_specs=jax.P(), out_specs=jax.P())
        self._step = jax.jit(every(self._one, check_vma=False), donate_argnums=(0, 1))

    def _one(self, params: Any, state: Any, zero: jax.Array) -> tuple[Any, Any]:
        def gradients(params: Any) -> Any:
            return jax.tree.map(lambda x: 1e-3 * x + zero, params)

        # In memory, as a network's are: a condition keeps XLA from fusing them with the optimizer.
        grads = jax.lax.cond(zero < 1, gradients, lambda params: params, params)
        if self._averages:
            grads = jax.lax.pmean(grads, "node")
        updates, state = self._inner.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def __call__(self) -> None:
        """Waits for as long as the compute takes (a program of several may not), and steps."""
        time.sleep(self._seconds)
        self._params, self._state = self._step(self._params, self._state, jnp.float32(0))
        jax.block_until_ready(self._params)


def train(about: Given, parameters: int) -> None:
    """Runs the program of a process."""
    transport, seconds = Gloo(), about.settings["step_seconds"]
    make = partial(Steps, transport.size, parameters, seconds)
    averages = about.factors["method"] == "synchronous"
    alone, steps = make(averages=False), make(averages=averages)
    for method in (alone, steps):
        method()  # compiles
    compute = measure(transport, alone, 0, about.settings)["seconds"]
    # Each node's gradients go out once and the sums come in once, whatever the algorithm.
    numbers = max(1, parameters // _LEAVES) * _LEAVES
    least = 2 * 4 * numbers if averages and transport.size > 1 else 0
    result = measure(transport, steps, least, about.settings, compute_seconds=compute)
    if transport.rank == 0:
        give(result)
