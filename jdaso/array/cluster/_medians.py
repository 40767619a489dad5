"""Exact medians of groups of rows on all nodes, without moving a row.

Numbers are mapped to integers of the same order, and all nodes search for the middle ones by
bisection: each round counts, for each group and column, the numbers that are not above a bound.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from .._sort import numbers_of, order_of
from .._world import World


def ordered(block: jax.Array) -> jax.Array:
    """Returns unsigned integers in the order of a block's numbers."""
    return jnp.asarray(order_of(np.asarray(block)))


def medians(
    order: jax.Array, labels: jax.Array, numbers: np.ndarray, dtype: np.dtype, at: World
) -> np.ndarray:
    """Returns the medians of groups, ``[k, d]``; of a group without rows any number.

    Args:
        order: this node's rows, from `ordered`.
        labels: the group of each.
        numbers: of rows of each group on all nodes, ``[k]``.
        dtype: of the rows.
        at: the nodes that share the rows.

    Moves one reduction of 2 k d integers for each bit of a number: 32 in float32.
    """
    kind = np.dtype(order.dtype)
    wanted = np.stack([(numbers + 1) // 2, numbers // 2 + 1])[:, :, None]  # the two in the middle
    shape = (2, len(numbers), order.shape[1])
    low, high = np.zeros(shape, kind), np.full(shape, np.iinfo(kind).max, kind)
    for _ in range(8 * kind.itemsize):
        middle = low + (high - low) // 2
        counts = np.asarray(_not_above(order, labels, middle))
        reached = at.sums(counts.reshape(-1)).reshape(shape) >= wanted
        high, low = np.where(reached, middle, high), np.where(reached, low, middle + 1)
    lower, upper = numbers_of(high, dtype)
    return lower + (upper - lower) / 2


@jax.jit
def _not_above(order: jax.Array, labels: jax.Array, bounds: jax.Array) -> jax.Array:
    """Numbers of this node's rows in each group that are not above its bounds, ``[2, k, d]``."""
    count = partial(jax.ops.segment_sum, segment_ids=labels, num_segments=bounds.shape[1])
    return jnp.stack([count((order <= bound[labels]).astype(jnp.int32)) for bound in bounds])
