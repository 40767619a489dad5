"""The end of a run with exchanges in flight, for `finalize` and checkpoints."""

from __future__ import annotations

import dataclasses
import functools

from .._exchange.late_host import HostLate
from .._jax.types import Leaves, PyTree
from .._payload.layout import describe
from .._session import Completion, Held
from .between import Between
from .exchanges import Exchanges
from .late import LateExchange, late_exchanges
from .state import DasoState
from .update_lengths import SharedLengths


def register(between: Between, params: PyTree) -> None:
    """Registers how this optimizer's run is completed."""
    shapes = between.placements.outside(params)
    outside = Exchanges(dataclasses.replace(between, local_axis=None), shapes)

    @functools.cache
    def late() -> tuple[LateExchange, ...]:
        return late_exchanges(outside, SharedLengths(outside))

    def complete(leaves: Leaves, state: DasoState, in_flight: tuple[bool, ...]) -> Leaves:
        for each, flies in zip(late(), in_flight, strict=True):
            leaves, state = each.complete(leaves, state, in_flight=flies)
        return leaves

    def held() -> tuple[Held, ...]:
        found = []
        for each, places in zip(outside.late, outside.spans, strict=True):
            assert isinstance(each, HostLate)  # virtual nodes hold them in their state
            found.append(Held(each.versions, places))
        return tuple(found)

    done = Completion(
        complete,
        between.on_nonfinite == "skip",
        lambda: between.wire.narrow,
        held,
        between.placements.of(params),
    )
    optimizers = between.session.optimizers
    optimizers.register_completion(between.number, describe(shapes), done)
