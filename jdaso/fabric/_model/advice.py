"""Advice: wire, B and S that hide all exchanges of a training on a cluster."""

from __future__ import annotations

import dataclasses
import math

from ..._rules.measured import MOST_SHARE
from ..._rules.phases import MOST_STEPS
from .exchange import Prediction, fragment_seconds, handling_seconds, predict
from .settings import WIRE_BYTES, Fabric, Training


@dataclasses.dataclass(frozen=True)
class Advice:
    """One way to hide everything: a wire, and the smallest S at which nothing is exposed."""

    training: Training
    prediction: Prediction


def advise(
    fabric: Fabric,
    training: Training,
    *,
    least_steps: int | None = None,
    most_steps: int = MOST_STEPS,
    exchange_seconds_measured: float | None = None,
) -> list[Advice]:
    """Finds B, S and wire that hide all exchanges: one for each wire that can, fastest step first.

    For each wire, B is the smallest with which nothing is exposed (see `predict`) and a cycle's
    starts and merges take at most 5 % of its steps, as in ``Phases(sync_every="auto")``; if they
    take more with every B, the smallest with which nothing is exposed. S is the smallest for that
    B. Steps within 1 % of the fastest count as equal; then the smaller B comes first (nodes drift
    less), then the wider wire.

    Args:
        fabric: the cluster.
        training: the training; B and S are those of a measured run, if there is one.
        least_steps: the smallest B to consider, ``training.sync_every`` by default.
        most_steps: wires that would need a larger B are left out; `least_steps` is always tried.
        exchange_seconds_measured: the time of an exchange on ``training.wire`` in a run
            (``Stats.exchange_seconds / Stats.exchanges``), used instead of the model's; the other
            wires scale from it by their bytes.

    Raises:
        ValueError: `most_steps` is less than 1, or the measured time is not above 0.
    """
    if most_steps < 1:
        raise ValueError(f"most_steps must be at least 1, got {most_steps}.")
    if exchange_seconds_measured is not None and not 0 < exchange_seconds_measured < math.inf:
        raise ValueError(
            "The time of an exchange must be above 0: Stats.exchange_seconds / Stats.exchanges of "
            f"a run in which some ended; got {exchange_seconds_measured} s."
        )
    found, scale = [], 1.0
    if exchange_seconds_measured is not None and fabric.nodes > 1:
        scale = exchange_seconds_measured / fragment_seconds(fabric, training)
    least = training.sync_every if least_steps is None else least_steps
    for wire in WIRE_BYTES:
        hidden = []
        for every in _intervals(training, least, most_steps):
            of_wire = dataclasses.replace(training, wire=wire, sync_every=every, delay=1)
            advice = _least_delay(fabric, of_wire, min(every, most_steps), scale)
            hidden += [advice] * (advice is not None)
            if advice is not None and _held_share(fabric, of_wire) <= MOST_SHARE:
                found.append(advice)
                break
        else:
            found += hidden[:1]
    fastest = min((a.prediction.step_seconds for a in found), default=0.0)

    def rank(advice: Advice) -> tuple[float, int, float]:
        chosen, seconds = advice.training, advice.prediction.step_seconds
        near = seconds <= 1.01 * fastest
        return 0.0 if near else seconds, chosen.sync_every, -WIRE_BYTES[chosen.wire]

    return sorted(found, key=rank)


def _held_share(fabric: Fabric, training: Training) -> float:
    """Returns the share of a cycle's steps that its starts and merges take."""
    if fabric.nodes == 1:
        return 0.0
    held, _ = handling_seconds(fabric, training)
    return held / (training.sync_every * training.step_seconds)


def _intervals(training: Training, least: int, most_steps: int) -> list[int]:
    """Returns the B that fragments allow, in the order in which to try them."""
    every = range(least, max(most_steps, least) + 1)
    return [b for b in every if isinstance(training.fragments, str) or not b % training.fragments]


def _least_delay(fabric: Fabric, training: Training, most: int, scale: float) -> Advice | None:
    """Returns the smallest S up to `most` that hides the exchanges; None if none does."""

    def with_delay(delay: int) -> Advice:
        chosen = dataclasses.replace(training, delay=delay)
        return Advice(chosen, predict(fabric, chosen, exchange_scale=scale))

    if with_delay(most).prediction.exposed_seconds > 0:
        return None
    delays = map(with_delay, range(1, most + 1))
    return next(advice for advice in delays if advice.prediction.exposed_seconds == 0)
