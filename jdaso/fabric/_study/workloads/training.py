"""Steps of training, paced: compute takes a given time, as on an accelerator; all else is real.

Optimizer, packing, exchange and merge are compiled into one step with it. An iteration is a step;
the compute of a step is the same step with the inner optimizer alone.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ...._compat import host_call
from ...._optimizers.daso import daso
from ...._optimizers.synchronous import synchronous
from ...._rules.phases import Phases
from ...._session import Session
from ..factors import MODELS
from ._given import Given, give, given
from ._mpi import Mpi
from ._timing import measure

_LEAVES = 16
_INNER = partial(optax.sgd, 1e-3, momentum=0.9)


class Paced:
    """A step's compute: it takes a time, uses no core, and gives gradients of every parameter."""

    def __init__(self, parameters: int, seconds: float):
        self._each, self._seconds = max(1, parameters // _LEAVES), seconds

    def params(self) -> list[jax.Array]:
        """Fresh ones."""
        return [jnp.full(self._each, 0.5 + k, jnp.float32) for k in range(_LEAVES)]

    def _pause(self, _: Any) -> np.ndarray:
        time.sleep(self._seconds)
        return np.zeros((), np.float32)

    def gradient(self, params: list[jax.Array], n: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        """Loss and gradients of step n."""
        zero = host_call(self._pause, jax.ShapeDtypeStruct((), jnp.float32), n)

        def gradients(params: list[jax.Array]) -> list[jax.Array]:
            return jax.tree.map(lambda x: 1e-3 * x + zero, params)

        # In memory, as a network's are: a condition keeps XLA from fusing them with the optimizer.
        return zero, jax.lax.cond(zero < 1, gradients, lambda params: params, params)


class Steps:
    """One method's steps, each of which goes on where the last one ended."""

    def __init__(self, work: Paced, tx: Any):
        self._work, self._tx, self._n = work, optax.with_extra_args_support(tx), 0
        self._params = work.params()
        self._state = self._tx.init(self._params)
        self._step = jax.jit(self._one, donate_argnums=(0, 1))

    def _one(self, params: Any, state: Any, n: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, grads = self._work.gradient(params, n)
        updates, state = self._tx.update(grads, state, params, value=loss)
        return optax.apply_updates(params, updates), state, loss

    def __call__(self) -> None:
        """Takes a step, and looks at its loss."""
        self._params, self._state, loss = self._step(self._params, self._state, np.int32(self._n))
        self._n += 1
        loss.block_until_ready()


def method_of(about: Given, session: Session) -> Any:
    """Returns the transformation that the factor method names."""
    method, wire = about.factors["method"], about.factors.get("wire", "float32")
    if method == "synchronous":
        return synchronous(_INNER(), session=session, wire=wire)
    if method == "bare":
        return _INNER()
    every = about.settings["sync_every"]
    phases = Phases(10**6, sync_every=every, delay=every)
    return daso(_INNER(), phases=phases, session=session, wire=wire, merge="corrected")


def parameters_of(about: Given) -> int:
    """Returns the number of parameters of the model."""
    return MODELS[about.factors["model"]] or about.settings["parameters"]


def over_mpi(about: Given) -> None:
    """Trains by jdaso."""
    with Session() as session:
        work = Paced(parameters_of(about), about.settings["step_seconds"])
        alone, steps = Steps(work, _INNER()), Steps(work, method_of(about, session))
        for method in (alone, steps):
            method()  # compiles
        meeting = Mpi()
        compute = measure(meeting, alone, 0, about.settings)["seconds"]
        result = measure(
            meeting,
            steps,
            0,
            about.settings,
            compute_seconds=compute,
            sent=lambda: session.stats.bytes_sent,
        )
        result["chosen"]["engine"] = session.engine
        if session.node == 0:
            give(result)


def main() -> None:
    """Runs the program."""
    about = given()
    if about.transport == "gloo":
        from ._gloo_training import train

        train(about, parameters_of(about))
    else:
        over_mpi(about)


if __name__ == "__main__":
    main()
