"""The delay of an exchange from measured times: ``delay="auto"``."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array

from .phases import Phases
from .state import PhaseState


def steps_taken(table: int | Mapping[int, int], started) -> Array:
    """Steps that the exchange started at step `started` takes; 1 if the table does not list it."""
    if not isinstance(table, Mapping):
        return jnp.float32(table)
    taken = jnp.float32(1)
    for step, steps in table.items():
        taken = jnp.where(started == step, jnp.float32(steps), taken)
    return taken


def fit_delay(phases: Phases, state: PhaseState, exchange_seconds, step_seconds) -> PhaseState:
    """Sets S from the times that the nodes measured, ``[nodes]`` each, if ``delay="auto"``."""
    if phases.delay != "auto" or phases.by_loss is not None:
        return state
    slowest = jnp.max(exchange_seconds)
    fastest = jnp.min(step_seconds)
    known = (slowest > 0) & (fastest > 0)
    steps = jnp.ceil(jnp.minimum(slowest / jnp.where(known, fastest, 1.0), 1e6)).astype(jnp.int32)
    fitted = jnp.clip(steps, 1, state.sync_every)
    return state._replace(delay=jnp.where(known, fitted, state.delay))
