"""The phase state: the progress of a run, carried in the optimizer's state."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .phases import Phases

# Not infinity or NaN: these end runs under ``jax_debug_infs`` and ``jax_debug_nans``.
NO_LOSS = np.finfo(np.float32).max
"""The best loss before there is one."""

NO_MEAN_LOSS = 1e30
"""The mean loss when no losses have arrived."""


class PhaseState(NamedTuple):
    """The progress through the phases; the same on all nodes."""

    sync_every: Int[Array, ""]  # B in force
    delay: Int[Array, ""]  # S in force
    local_every: Int[Array, ""]  # l in force
    interval: Float[Array, ""]  # measured, from which B was set; 0 before
    cycled_seconds: Float[Array, ""]  # of cycles after which B could be set
    exchanges: Int[Array, ""]  # exchanges started so far
    best_loss: Float[Array, ""]  # best mean of a window; `NO_LOSS` before the first
    bad_windows: Int[Array, ""]  # windows in a row without improvement
    loss_sum: Float[Array, ""]  # of this window, weighted, over nodes; as the exchanges carried it
    loss_weight: Float[Array, ""]  # of the losses in that sum
    untold: Float[Array, 2]  # sum and weight of losses not yet passed to the inner optimizer


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
        interval=real(0),
        cycled_seconds=real(0),
        exchanges=whole(0),
        best_loss=real(NO_LOSS),
        bad_windows=whole(0),
        loss_sum=real(0),
        loss_weight=real(0),
        untold=jnp.zeros(2, jnp.float32),
    )
