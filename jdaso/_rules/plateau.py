"""A plateau of the loss lowers the interval between exchanges and their delay (III-B)."""

from __future__ import annotations

import jax.numpy as jnp

from .phases import Phases
from .state import NO_LOSS, PhaseState


def end_step(phases: Phases, state: PhaseState, step) -> PhaseState:
    """Evaluates the loss if update `step` ends a window."""
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
