"""The mean loss over all nodes; exchanges carry the losses."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from .._jax.debug import refuses_nan
from .state import NO_MEAN_LOSS, PhaseState


def count_loss(state: PhaseState, sums, weights) -> PhaseState:
    """Adds the losses of an exchange: their sums and their weights, ``[nodes]`` each.

    A node whose loss is not finite is left out: it would spoil the mean for the whole window.
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
    """The mean loss that is passed to an inner optimizer.

    NaN if no loss has arrived since the last mean; `NO_MEAN_LOSS` if JAX refuses NaN
    (``jax_debug_nans``).
    """
    total, weight = untold
    nothing = NO_MEAN_LOSS if refuses_nan() else jnp.nan
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), nothing)
