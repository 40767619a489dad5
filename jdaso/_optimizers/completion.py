"""The end of a run with exchanges in flight: what `finalize` and checkpoints need of a `daso`."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from .._engines.versions import Versions
from .._exchange.late_host import HostLate
from .._payload.layout import describe
from .._session import Completion
from .._types import Leaves, PyTree, ShapeDtype
from .between import Between
from .late import LateExchange
from .state import DasoState


def register(between: Between, params: PyTree) -> None:
    """Registers how this optimizer's run is completed."""
    outside = dataclasses.replace(between, local_axis=None)
    fragments = outside.fragments(params)
    shapes = jax.tree.map(lambda x: ShapeDtype(jnp.shape(x), jnp.result_type(x)), params)
    late = [LateExchange(outside, shapes, fragments, index) for index in range(len(fragments))]

    def complete(leaves: Leaves, state: DasoState, in_flight: tuple[bool, ...]) -> Leaves:
        for each, flies in zip(late, in_flight, strict=True):
            leaves = each.complete(leaves, state, in_flight=flies)
        return leaves

    def versions() -> tuple[Versions, ...]:
        found = []
        for each in late:
            assert isinstance(each.late, HostLate)  # virtual nodes hold it in their state
            found.append(each.late.versions)
        return tuple(found)

    done = Completion(
        complete,
        outside.on_nonfinite == "skip",
        late[0].late.feeds,
        late[0].late.anchored,
        versions,
    )
    between.session.completions[between.number, describe(params)] = done
