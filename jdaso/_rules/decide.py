"""Decides when nodes exchange: the tasks of an update, from the settings and the phase state."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool

from .phases import Phases
from .state import PhaseState


class Actions(NamedTuple):
    """The tasks of one update; the same on all nodes. F fragments."""

    blocking: Bool[Array, ""]  # wait for all nodes in this step
    merge: Bool[Array, " F"]  # wait for the fragment's exchange in flight and merge it
    mean: Bool[Array, ""]  # exact mean of parameters and inner state
    start: Bool[Array, " F"]  # start an exchange of the fragment, as merged
    last_warmup: Bool[Array, ""]  # the last update of the warm-up


def decide(phases: Phases, state: PhaseState, step, started, ticket, delay) -> Actions:
    """Returns the tasks of update `step`.

    A start of fragment 0, due in the first cycling update and then every B steps, begins a cycle;
    fragment f follows ``floor(f B / F)`` steps later. If B changes meanwhile, a fragment whose turn
    has passed waits for the next cycle: once, for less than two cycles of the larger B.

    The merge comes before the start, so that each snapshot contains the latest merge. The last
    cycling update starts nothing, completes the exchanges in flight and ends with an exact mean;
    the two updates after it repeat the mean, since ``p + (t - p)`` rounds.

    Args:
        phases: the settings.
        state: the phase state.
        step: n, completed updates.
        started: the step of each fragment's last start, int32 ``[F]``; -1 before the first.
        ticket: each fragment's exchange in flight, int32 ``[F]``; 0 for none.
        delay: S when each fragment's last exchange started, int32 ``[F]``; the S in force is used
            instead if the loss or measured times set it.
    """
    end = phases.total_steps - phases.cooldown_steps
    cycling = (step >= phases.warmup_steps) & (step < end)
    last = cycling & (step == end - 1)
    settling = (step >= end) & (step < end + 2) & (phases.cycling_steps > 0)
    fragments = started.shape[0]
    begins = (started[0] < 0) | (step - started[0] >= state.sync_every)
    begun = jnp.where(begins, step, started[0])
    turn = _turns(state.sync_every, fragments)
    start = cycling & ~last & (started < begun) & (step - begun >= turn)
    age, least_age = step - started, state.delay if phases.sets_delay else delay
    return Actions(
        blocking=~cycling,
        # Always before a start, even if a flipped bit has corrupted the delay.
        merge=cycling & (ticket != 0) & ((age >= least_age) | last | start),
        mean=last | settling,
        start=start,
        last_warmup=step + 1 == phases.warmup_steps,
    )


def _turns(sync_every, fragments: int) -> Array:
    """``floor(f B / F)`` for each f; no product exceeds B, which may be near the largest int32."""
    f = jnp.arange(fragments, dtype=jnp.int32)
    return f * (sync_every // fragments) + f * (sync_every % fragments) // fragments


def count_start(phases: Phases, state: PhaseState, fragment: int, fragments: int) -> PhaseState:
    """Counts a started exchange; with fragment 0 the period's next B and S take effect."""
    if phases.by_loss is None and len(phases.pairs) > 1 and fragment == 0:
        cycle = state.exchanges // fragments
        pair = jnp.asarray(phases.pairs, jnp.int32)[cycle % len(phases.pairs)]
        state = state._replace(sync_every=pair[0])
        if phases.delay != "auto":
            state = state._replace(delay=pair[1])
        else:
            state = state._replace(delay=jnp.minimum(state.delay, pair[0]))
    return state._replace(exchanges=state.exchanges + 1)
