"""When the nodes talk: what one update does, from the settings of a run and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._compat import refuses_nan
from ._phases import Phases

# Infinity or NaN would end runs under ``jax_debug_infs`` and ``jax_debug_nans``.
NO_LOSS = np.finfo(np.float32).max
"""The best loss before there is one."""

NO_MEAN_LOSS = 1e30
"""A mean loss where nothing was heard."""


class PhaseState(NamedTuple):
    """Where the phases stand; the same on all nodes."""

    sync_every: Int[Array, ""]  # B in force
    delay: Int[Array, ""]  # S in force
    local_every: Int[Array, ""]  # l in force
    exchanges: Int[Array, ""]  # exchanges started so far
    best_loss: Float[Array, ""]  # best mean of a window; `NO_LOSS` before the first
    bad_windows: Int[Array, ""]  # windows in a row without improvement
    loss_sum: Float[Array, ""]  # of this window, weighted, over nodes; as the exchanges brought it
    loss_weight: Float[Array, ""]  # of the losses in that sum
    untold: Float[Array, 2]  # sum and weight of what the inner optimizer has not been told yet


class Actions(NamedTuple):
    """What one update has to do; the same on all nodes."""

    blocking: Bool[Array, ""]  # wait for all nodes in this step
    merge: Bool[Array, ""]  # wait for the exchange in flight and merge it
    mean: Bool[Array, ""]  # exact mean of parameters and inner state
    start: Bool[Array, ""]  # start an exchange of the result


def init_phases(phases: Phases) -> PhaseState:
    """The state before the first update."""
    (sync_every, delay), local_every = phases.pairs[0], phases.local_every
    if phases.by_loss is not None:
        local_every = phases.by_loss.first[2]
    whole = lambda n: jnp.asarray(n, jnp.int32)  # noqa: E731
    real = lambda x: jnp.asarray(x, jnp.float32)  # noqa: E731
    return PhaseState(
        sync_every=whole(sync_every),
        delay=whole(delay),
        local_every=whole(local_every),
        exchanges=whole(0),
        best_loss=real(NO_LOSS),
        bad_windows=whole(0),
        loss_sum=real(0),
        loss_weight=real(0),
        untold=jnp.zeros(2, jnp.float32),
    )


def decide(phases: Phases, state: PhaseState, step, started, ticket) -> Actions:
    """What update `step` does.

    Merge comes before start, so that each snapshot holds the latest merge. The last cycling update
    starts nothing, completes what is in flight and ends with an exact mean; the two updates after
    it repeat the mean, since ``p + (t - p)`` rounds.
    """
    end = phases.total_steps - phases.cooldown_steps
    cycling = (step >= phases.warmup_steps) & (step < end)
    last = cycling & (step == end - 1)
    settling = (step >= end) & (step < end + 2) & (phases.cycling_steps > 0)
    age = step - started
    start = cycling & ~last & ((step == phases.warmup_steps) | (age >= state.sync_every))
    return Actions(
        blocking=~cycling,
        # Before a start in any case, whatever a bit that flipped has made of the delay.
        merge=cycling & (ticket != 0) & ((age >= state.delay) | last | start),
        mean=last | settling,
        start=start,
    )


def count_start(phases: Phases, state: PhaseState) -> PhaseState:
    """An exchange started: the next B and S of the period come into force with it."""
    if phases.by_loss is None and len(phases.pairs) > 1:
        pair = jnp.asarray(phases.pairs, jnp.int32)[state.exchanges % len(phases.pairs)]
        state = state._replace(sync_every=pair[0])
        if phases.delay != "auto":
            state = state._replace(delay=pair[1])
        else:
            state = state._replace(delay=jnp.minimum(state.delay, pair[0]))
    return state._replace(exchanges=state.exchanges + 1)


def count_loss(state: PhaseState, sums, weights) -> PhaseState:
    """Adds what an exchange brought: sums of losses and their weights, ``[nodes]`` each.

    A node whose loss is not finite is left out: it would hide the others' for the whole window.
    """
    brought = sum_of_losses(sums, weights)
    return state._replace(
        loss_sum=state.loss_sum + brought[0],
        loss_weight=state.loss_weight + brought[1],
        untold=state.untold + brought,
    )


def sum_of_losses(sums, weights) -> Array:
    """Sum and weight over the nodes, float32 ``[2]``, of losses that are finite."""
    finite = jnp.isfinite(sums)
    return jnp.stack([jnp.sum(jnp.where(finite, words, 0.0)) for words in (sums, weights)])


def mean_of_untold(untold) -> Array:
    """The mean loss that an inner optimizer is given.

    NaN where nothing was heard since; where JAX refuses NaN (``jax_debug_nans``) `NO_MEAN_LOSS`.
    """
    total, weight = untold
    nothing = NO_MEAN_LOSS if refuses_nan() else jnp.nan
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), nothing)


def steps_taken(table: int | Mapping[int, int], started) -> Array:
    """Of an exchange that started at that step: by a table 1 where it says nothing."""
    if not isinstance(table, Mapping):
        return jnp.float32(table)
    taken = jnp.float32(1)
    for step, steps in table.items():
        taken = jnp.where(started == step, jnp.float32(steps), taken)
    return taken


def fit_delay(phases: Phases, state: PhaseState, exchange_seconds, step_seconds) -> PhaseState:
    """Sets S from what the nodes measured, ``[nodes]`` each, where ``delay="auto"``."""
    if phases.delay != "auto" or phases.by_loss is not None:
        return state
    slowest = jnp.max(exchange_seconds)
    fastest = jnp.min(step_seconds)
    known = (slowest > 0) & (fastest > 0)
    steps = jnp.ceil(jnp.minimum(slowest / jnp.where(known, fastest, 1.0), 1e6)).astype(jnp.int32)
    fitted = jnp.clip(steps, 1, state.sync_every)
    return state._replace(delay=jnp.where(known, fitted, state.delay))


def end_step(phases: Phases, state: PhaseState, step) -> PhaseState:
    """Looks at the loss where update `step` ends a window."""
    rule = phases.by_loss
    if rule is None:
        return state
    mean = state.loss_sum / jnp.where(state.loss_weight > 0, state.loss_weight, 1.0)
    look = ((step + 1) % rule.window_steps == 0) & (state.loss_weight > 0)
    first = state.best_loss >= NO_LOSS
    best = jnp.where(first, jnp.float32(0), state.best_loss)
    better = look & (first | (mean < best - rule.threshold * jnp.abs(best)))
    cycling = (step >= phases.warmup_steps) & (step < phases.total_steps - phases.cooldown_steps)
    bad = jnp.where(look & cycling, jnp.where(better, 0, state.bad_windows + 1), state.bad_windows)
    plateau = look & cycling & (bad >= rule.patience)
    lower = (
        jnp.maximum(state.sync_every // rule.reduction, 1),
        jnp.maximum(state.delay - 1, 1),
        jnp.maximum(state.local_every // rule.reduction, 1),
    )
    every, delay, local = (
        jnp.where(state.sync_every <= 1, jnp.int32(top), low)
        for top, low in zip(rule.largest, lower, strict=True)
    )
    return state._replace(
        sync_every=jnp.where(plateau, every, state.sync_every),
        delay=jnp.where(plateau, jnp.minimum(delay, every), state.delay),
        local_every=jnp.where(plateau, local, state.local_every),
        best_loss=jnp.where(better, mean, state.best_loss),
        bad_windows=jnp.where(plateau, 0, bad),
        loss_sum=jnp.where(look, 0.0, state.loss_sum),
        loss_weight=jnp.where(look, 0.0, state.loss_weight),
    )
