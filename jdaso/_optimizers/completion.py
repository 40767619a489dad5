"""The end of a run with exchanges in flight, for `finalize` and checkpoints."""

from __future__ import annotations

import dataclasses
import functools

from .._exchange.late_host import HostLate
from .._jax.types import Leaves, PyTree
from .._payload.layout import describe
from .._payload.spans import Span
from .._session import Completion, Held
from .between import Between
from .late import LateExchange
from .state import DasoState


def register(between: Between, params: PyTree) -> None:
    """Registers how this optimizer's run is completed."""
    outside = dataclasses.replace(between, local_axis=None)
    shapes = between.placements.outside(params)

    @functools.cache
    def late() -> list[LateExchange]:
        fragments = outside.fragments(shapes)
        return [LateExchange(outside, shapes, fragments, f) for f in range(len(fragments))]

    def complete(leaves: Leaves, state: DasoState, in_flight: tuple[bool, ...]) -> Leaves:
        for each, flies in zip(late(), in_flight, strict=True):
            leaves, state = each.complete(leaves, state, in_flight=flies)
        return leaves

    @functools.cache
    def spans() -> list[tuple[Span, ...]]:
        return [outside.spans(shapes, each.late, each.fragment) for each in late()]

    def held() -> tuple[Held, ...]:
        found = []
        for each, places in zip(late(), spans(), strict=True):
            assert isinstance(each.late, HostLate)  # virtual nodes hold it in their state
            found.append(Held(each.late.versions, places))
        return tuple(found)

    done = Completion(
        complete,
        outside.on_nonfinite == "skip",
        between.wire.narrow,
        between.wire.narrow or between.rule.needs_anchor,
        held,
        between.placements.of(params),
    )
    optimizers = between.session.optimizers
    optimizers.register_completion(between.number, describe(shapes), done)
