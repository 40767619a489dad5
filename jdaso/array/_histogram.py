"""Counts of values: each node's own, then one sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array
from ._layout import Layout
from ._move import laid
from ._reduce import REDUCTIONS


def histogram(
    x: Any,
    bins: int | Sequence[float] = 10,
    range: tuple[float, float] | None = None,  # noqa: A002
    *,
    weights: Any = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """Counts the elements in bins; returns counts and edges, as `numpy.histogram`.

    Args:
        x: the array.
        bins: the number of bins of equal width, or their edges.
        range: the outer edges; None: the smallest and the largest element.
        weights: of each element, of the same shape; None: 1 each.
        density: whether to divide by the sum and the width of each bin.

    Raises:
        ValueError: the range is not finite or falls, or weights have another shape.

    Moves: two numbers for the range, if it is not given, and one sum of the counts.
    """
    x = as_array(x)
    edges = jnp.asarray(_edges(x, bins, range))
    weighed = None
    if weights is not None:
        weighed = as_array(weights)
        if weighed.shape != x.shape:
            raise ValueError(f"weights have shape {weighed.shape}, the array {x.shape}.")
        weighed = laid(weighed, x.layout).block.reshape(-1)
    counts, _ = jnp.histogram(x.block.reshape(-1), edges, weights=weighed)
    if weighed is None:
        counts = counts.astype(int)
    if x.split is not None:
        counts = x.world.reduce(counts, "sum")
    if density:
        counts = counts / jnp.sum(counts) / jnp.diff(edges)
    return as_array(counts), as_array(edges)


def _edges(x: Array, bins: int | Sequence[float], given: tuple[float, float] | None) -> np.ndarray:
    if not isinstance(bins, int):
        return np.asarray(bins)
    if given is None:
        both = jnp.stack([jnp.min(x.block, initial=jnp.inf), -jnp.max(x.block, initial=-jnp.inf)])
        if x.split is not None:
            both = x.world.reduce(both, "min")
        given = (float(both[0]), -float(both[1])) if x.size else (0.0, 1.0)
    low, high = map(float, given)
    if not (np.isfinite([low, high]).all() and low <= high):
        raise ValueError(f"The range of a histogram must be finite and rise, got {low} to {high}.")
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, bins + 1, dtype=np.result_type(x.dtype, np.float32))


def bincount(x: Any, *, weights: Any = None, minlength: int = 0) -> Array:
    """The number of elements of each value 0, 1, ...; with weights their sums.

    Moves: one number for the largest value, and one sum of the counts.
    """
    x = as_array(x)
    largest = int(REDUCTIONS["max"](x)) if x.size else -1
    length = max(minlength, largest + 1)
    weighed = None if weights is None else laid(as_array(weights), x.layout).block
    counts = jnp.bincount(x.block, weights=weighed, length=length)
    if x.split is not None:
        counts = x.world.reduce(counts, "sum")
    return Array(counts, Layout((length,)), x.world)
