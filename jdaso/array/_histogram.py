"""Counts of values: each node's own, then one sum."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._array import Array, as_array, of_one_world
from ._layout import Layout
from ._move import laid
from ._reduce import REDUCTIONS


def histogram(
    x: Any,
    bins: Any = 10,
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

    Moves: two reductions for the range, if it is not given, and one sum of the counts.
    """
    x, weighed = _weighed(x, weights)
    edges = _edges(x, bins, range)
    counts = _counts(x, edges, weighed, even=not np.ndim(bins))
    if x.split is not None:
        counts = x.world.reduce(counts, "sum")
    if density:
        counts = counts / jnp.sum(counts) / jnp.diff(jnp.asarray(edges))
    found = (counts, jnp.asarray(edges))
    first, second = (Array(one, Layout(one.shape), x.world) for one in found)
    return first, second


def _weighed(x: Any, weights: Any) -> tuple[Array, jax.Array | None]:
    """An array, and the weights of its block."""
    if weights is None:
        return as_array(x), None
    x, weights = of_one_world(x, weights)
    if weights.shape != x.shape:
        raise ValueError(f"weights have shape {weights.shape}, the array {x.shape}.")
    if x.split is None:
        x = laid(x, weights.layout)
    return x, laid(weights, x.layout).block


def _counts(x: Array, edges: np.ndarray, weights: jax.Array | None, *, even: bool) -> jax.Array:
    """This node's counts; `even` tells that bins have equal widths.

    Of whole numbers by NumPy, to which edges in 64 bits are exact.
    """
    if x.dtype.kind in "iub":
        block = np.asarray(x.block).astype(x.dtype if x.dtype.kind in "iu" else np.uint8)
        theirs = None if weights is None else np.asarray(weights)
        counts = jnp.asarray(np.histogram(block, edges, weights=theirs)[0])
    elif even and x.dtype.kind == "f" and x.itemsize > 2 and not isinstance(x.block, Tracer):
        # NumPy's way for bins of equal width is fifty times as fast as a search among edges.
        theirs = None if weights is None else np.asarray(weights)
        ends = float(edges[0]), float(edges[-1])
        found = np.histogram(np.asarray(x.block), len(edges) - 1, ends, weights=theirs)[0]
        counts = jnp.asarray(found)
    else:
        flat = None if weights is None else weights.reshape(-1)
        counts = jnp.histogram(x.block.reshape(-1), jnp.asarray(edges), weights=flat)[0]
    return counts.astype(int) if weights is None else counts.astype(weights.dtype)


def _edges(x: Array, bins: Any, given: tuple[float, float] | None) -> np.ndarray:
    if np.ndim(bins):
        return np.asarray(bins)
    if given is None:
        both = [REDUCTIONS[name](x) for name in ("min", "max")] if x.size else (0.0, 1.0)
        given = float(both[0]), float(both[1])
    low, high = map(float, given)
    if not (np.isfinite([low, high]).all() and low <= high):
        raise ValueError(f"The range of a histogram must be finite and rise, got {low} to {high}.")
    if low == high:
        low, high = low - 0.5, high + 0.5
    whole = x.dtype.kind in "iub"
    dtype = np.dtype(float) if whole else np.result_type(x.dtype, np.float32)
    return np.linspace(low, high, operator.index(bins) + 1, dtype=dtype)


def bincount(x: Any, *, weights: Any = None, minlength: int = 0) -> Array:
    """The number of elements of each value 0, 1, ...; with weights their sums.

    Raises:
        ValueError: a value is negative, or weights have another shape.

    Moves: two reductions for the smallest and the largest value, and one sum of the counts.
    """
    x, weighed = _weighed(x, weights)
    least, largest = (int(REDUCTIONS[name](x)) if x.size else -1 for name in ("min", "max"))
    if x.size and least < 0:
        raise ValueError(f"bincount counts the values 0, 1, ..., got {least}. Shift them.")
    length = max(minlength, largest + 1)
    counts = jnp.bincount(x.block, weights=weighed, length=length)
    if x.split is not None:
        counts = x.world.reduce(counts, "sum")
    return Array(counts, Layout((length,)), x.world)
