"""When nodes exchange: what one update does, from the run's settings and its phase state."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool

from .phases import Phases
from .state import PhaseState


class Actions(NamedTuple):
    """The tasks of one update; the same on all nodes."""

    blocking: Bool[Array, ""]  # wait for all nodes in this step
    merge: Bool[Array, ""]  # wait for the exchange in flight and merge it
    mean: Bool[Array, ""]  # exact mean of parameters and inner state
    start: Bool[Array, ""]  # start an exchange of the result


def decide(phases: Phases, state: PhaseState, step, started, ticket) -> Actions:
    """Returns the tasks of update `step`.

    The merge comes before the start, so that each snapshot contains the latest merge. The last
    cycling update starts nothing, completes the exchange in flight and ends with an exact mean; the
    two updates after it repeat the mean, since ``p + (t - p)`` rounds.
    """
    end = phases.total_steps - phases.cooldown_steps
    cycling = (step >= phases.warmup_steps) & (step < end)
    last = cycling & (step == end - 1)
    settling = (step >= end) & (step < end + 2) & (phases.cycling_steps > 0)
    age = step - started
    start = cycling & ~last & ((step == phases.warmup_steps) | (age >= state.sync_every))
    return Actions(
        blocking=~cycling,
        # Always before a start, even if a flipped bit has corrupted the delay.
        merge=cycling & (ticket != 0) & ((age >= state.delay) | last | start),
        mean=last | settling,
        start=start,
    )


def count_start(phases: Phases, state: PhaseState) -> PhaseState:
    """Counts a started exchange, with which the next B and S of the period come into force."""
    if phases.by_loss is None and len(phases.pairs) > 1:
        pair = jnp.asarray(phases.pairs, jnp.int32)[state.exchanges % len(phases.pairs)]
        state = state._replace(sync_every=pair[0])
        if phases.delay != "auto":
            state = state._replace(delay=pair[1])
        else:
            state = state._replace(delay=jnp.minimum(state.delay, pair[0]))
    return state._replace(exchanges=state.exchanges + 1)
