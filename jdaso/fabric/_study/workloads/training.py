"""Steps of training: networks of Flax on made-up data, or paced as on an accelerator.

Paced, compute takes a given time and leaves the cores alone; optimizer, packing, exchange and merge
are real, as are the shapes of the parameters. An iteration is a cycle of steps (`_training`); the
compute of a step is the same step with the inner optimizer alone. `factors.METHODS` describes the
methods of each library.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from ...._optimizers.daso import daso
from ...._optimizers.synchronous import synchronous
from ...._rules.phases import Phases
from ...._session import Session
from ._given import Given, give, given
from ._places import OneProgram, Own, StepDevices
from ._start import transport_of
from ._training import train
from ._work import StepWork, shapes_of, work_of

_INNER = partial(optax.sgd, 1e-4, momentum=0.9)
"""Rate so small that VGG-16, which has no normalization, stays finite at any batch."""


class JaxSteps:
    """One method's steps in JAX."""

    def __init__(self, work: StepWork, place: StepDevices, tx: Any):
        self._work, self._place = work, place
        self._tx, self._n = optax.with_extra_args_support(tx), 0
        self._params = place.placed(work.params())
        self._state = place.state(self._tx, self._params)
        self._step = place.compiled(self._one)

    def _one(self, params: Any, state: Any, n: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, grads = self._work.gradient(params, n, self._place.node())
        updates, state = self._tx.update(grads, state, params, value=loss)
        return optax.apply_updates(params, updates), state, loss

    def __call__(self) -> float:
        """Takes a step, and returns its loss on this node."""
        self._work.wait()
        self._params, self._state, loss = self._step(self._params, self._state, np.int32(self._n))
        self._n += 1
        return float(loss.addressable_data(0))

    def gradients(self) -> list[Any]:
        """Returns the momentum, which after one step is the gradient."""
        momentum = optax.tree.get(self._state, "trace")
        return [leaf.addressable_data(0) for leaf in jax.tree.leaves(momentum)]


def averaged(mean: Any) -> optax.GradientTransformation:
    """Returns the inner optimizer after a library's own mean of all nodes' gradients."""
    return optax.chain(optax.stateless(lambda grads, _: mean(grads)), _INNER())


def by_jdaso(about: Given, session: Session) -> Any:
    """Returns the transformation of a method of jdaso."""
    if about.method == "synchronous":
        return synchronous(_INNER(), session=session, wire=about.wire)
    every, settings = about.settings["sync_every"], about.settings
    phases = Phases(
        10**6,
        sync_every=every,
        delay=settings["delay"] or every,
        fragments=settings["fragments"] or "auto",
    )
    return daso(_INNER(), phases=phases, session=session, wire=about.wire, merge="corrected")


def bytes_of(about: Given, nodes: int) -> int:
    """Returns the fewest bytes that a node sends and receives to average gradients once.

    Each node's gradients go out once and the sums come in once, whatever the algorithm.
    """
    numbers = sum(leaf.size for leaf in jax.tree.leaves(shapes_of(about)))
    return 2 * 4 * numbers if about.method == "synchronous" and nodes > 1 else 0


def over_mpi(about: Given) -> None:
    """Trains by jdaso; gradients by mpi4jax, if that is the transport."""
    with Session(engine=about.engine) as session:  # pyright: ignore[reportArgumentType]
        transport = transport_of(about)
        nodes = session.num_nodes
        work, place = work_of(about, nodes, in_step=True), Own(session.node)
        own = about.method in ("daso", "instant") or about.transport == "mpi"
        each = 0 if own else bytes_of(about, nodes)

        def make() -> JaxSteps:
            if about.method == "bare":
                return alone()
            tx = by_jdaso(about, session) if own else averaged(transport.mean)
            return JaxSteps(work, place, tx)

        def alone() -> JaxSteps:
            return JaxSteps(work, place, _INNER())

        # As much comes in as goes out; but half of a late exchange may have crossed before.
        ways = {"synchronous": 2, "daso": 1}.get(about.method, 0)

        def sent() -> int:
            return ways * session.stats.bytes_sent

        def communicated() -> float:
            return session.stats.exchange_seconds + session.stats.blocking_seconds

        result = train(about, transport, alone, make, each, sent, communicated if own else None)
        result["chosen"]["engine"] = session.engine
        if session.node == 0:
            give(result)


def over_mesh(about: Given) -> None:
    """Trains in JAX's own processes."""
    transport = transport_of(about)
    work = work_of(about, transport.size, in_step=False)
    place, each = OneProgram(transport.size), bytes_of(about, transport.size)
    tx = averaged(transport.mean) if about.method == "synchronous" else _INNER()
    make = partial(JaxSteps, work, place)
    result = train(about, transport, partial(make, _INNER()), partial(make, tx), each)
    if transport.rank == 0:
        give(result)


def over_torch(about: Given) -> None:
    """Trains in PyTorch's processes."""
    from ._torch_training import steps_of

    transport = transport_of(about)
    shapes = [leaf.shape for leaf in jax.tree.leaves(shapes_of(about))]
    each = bytes_of(about, transport.size)
    make = partial(steps_of, transport, shapes, about.step_seconds)
    result = train(
        about,
        transport,
        partial(make, averages=False),
        partial(make, averages=about.method == "synchronous"),
        each,
    )
    if transport.rank == 0:
        give(result)


_TRAINS = {
    "mpi": over_mpi,
    "mpi4jax": over_mpi,
    "gloo": over_mesh,
    "nccl": over_mesh,
    "torch": over_torch,
}


def main() -> None:
    """Runs the program."""
    about = given()
    _TRAINS[about.transport](about)


if __name__ == "__main__":
    main()
