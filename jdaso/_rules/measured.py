"""B and S from measured times: ``sync_every="auto"`` and ``delay="auto"``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .phases import MOST_STEPS, Phases
from .state import PhaseState

MOST_SHARE = 0.05
"""The largest share that starts and merges may add to the time of a cycle's steps."""

SETTLED_SECONDS = 60.0
"""Total time of cycling steps after which B is kept unless it changes by `CHANGE`."""

CHANGE = 2.0
"""An interval that is larger or smaller by this factor replaces B at once, at any time."""

FOLLOWS = 0.25
"""The share of smaller differences that B follows in the first minute: measurements scatter."""


class Times(NamedTuple):
    """Times that a node measures and its header carries; 0 for those not known yet.

    A node that starts first also measures how far behind the others are. So the times of an
    exchange and of the link are those of the last node to start: the shortest. All nodes run at the
    pace of the slowest, whose step is the longest: each waits for the others' numbers.

    Attributes:
        exchange_seconds: from an exchange's start to its result.
        step_seconds: of a step, without the time that the step waited for exchanges.
        link_seconds: during which a cycle's exchanges occupied the link.
        held_seconds: by which a cycle's starts and merges delayed the steps.
    """

    exchange_seconds: Any = 0.0
    step_seconds: Any = 0.0
    link_seconds: Any = 0.0
    held_seconds: Any = 0.0


def interval_of(times: Times) -> Float[Array, ""]:
    """The smallest B that hides a cycle's exchanges, not rounded; 0 if not known.

    Args:
        times: of all nodes, ``[nodes]`` each.
    """
    link, held = jnp.min(times.link_seconds), jnp.max(times.held_seconds) / MOST_SHARE
    return _in_steps(jnp.where(link > 0, jnp.maximum(link, held), 0), times)


def _in_steps(seconds, times: Times) -> Float[Array, ""]:
    """Seconds in steps of the slowest node, not rounded, at most a million; 0 if not known."""
    step = jnp.max(times.step_seconds)
    return jnp.where(step > 0, jnp.minimum(seconds / jnp.where(step > 0, step, 1), 1e6), 0)


def steps_taken(table: int | Mapping[int, int], started) -> Array:
    """Steps that the exchange started at step `started` takes; 1 if the table does not list it."""
    if not isinstance(table, Mapping):
        return jnp.float32(table)
    taken = jnp.float32(1)
    for step, steps in table.items():
        taken = jnp.where(started == step, jnp.float32(steps), taken)
    return taken


def fit(phases: Phases, state: PhaseState, times: Times, *, sets_interval: bool) -> PhaseState:
    """Sets B and S, where they are ``"auto"``, from the times that an exchange carried.

    Args:
        phases: the settings.
        state: the phase state.
        times: of all nodes, ``[nodes]`` each.
        sets_interval: whether B may change: true once per cycle.
    """
    if phases.by_loss is not None:
        return state
    if sets_interval and phases.sync_every == "auto":
        state = _fit_interval(state, times)
    return _fit_delay(state, times) if phases.delay == "auto" else state


def _fit_interval(state: PhaseState, times: Times) -> PhaseState:
    """Lets the interval, and B, follow measurements: at once after a large change, else slowly."""
    found, known = interval_of(times), state.interval
    changed = (found > CHANGE * known) | (found * CHANGE < known)
    settled = state.cycled_seconds >= SETTLED_SECONDS
    followed = jnp.where(changed, found, known + jnp.where(settled, 0, FOLLOWS) * (found - known))
    interval = jnp.where(found > 0, followed, known)
    steps = jnp.ceil(jnp.minimum(interval, float(MOST_STEPS))).astype(jnp.int32)
    every = jnp.where(interval > 0, jnp.maximum(steps, 1), state.sync_every)
    # 17 bits times 7 are exact: a node that fuses product and sum gets the same result.
    step = jax.lax.reduce_precision(jnp.max(times.step_seconds), exponent_bits=8, mantissa_bits=16)
    seconds = step * state.sync_every.astype(jnp.float32)
    return state._replace(
        sync_every=every,
        delay=jnp.minimum(state.delay, every),
        interval=interval,
        cycled_seconds=state.cycled_seconds + seconds,
    )


def _fit_delay(state: PhaseState, times: Times) -> PhaseState:
    steps = _in_steps(jnp.min(times.exchange_seconds), times)
    fitted = jnp.clip(jnp.ceil(steps).astype(jnp.int32), 1, state.sync_every)
    return state._replace(delay=jnp.where(steps > 0, fitted, state.delay))
