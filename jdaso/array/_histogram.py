"""Counts of values: each node's own, then one sum."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._jax.cpus import namespace_of
from ._array import Array, as_array, of_one_world
from ._elementwise import elementwise
from ._layout import ArrayLayout
from ._move import laid
from ._reduce import REDUCTIONS, index_type, type_of_means
from ._whole_numbers import require_fit


def histogram(
    x: Any,
    bins: Any = 10,
    range: tuple[float, float] | None = None,  # noqa: A002
    *,
    weights: Any = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """Counts the elements in bins; returns counts and edges, like `numpy.histogram`.

    Args:
        x: the array.
        bins: the number of bins of equal width, or their edges.
        range: the outer edges; None: the smallest and the largest element.
        weights: of each element, of the same shape; None: 1 each.
        density: whether to divide by the sum and the width of each bin.

    Raises:
        ValueError: the range is not finite or decreases, or weights have another shape.
        TypeError: the numbers are complex.

    Moves: two numbers from each node for a range that is not given, and one sum of the counts.
    """
    if isinstance(bins, str):
        raise TypeError(
            f"bins must be a number or edges, got {bins!r}. Find a number by rule first."
        )
    x, weighed = _weighed(x, weights)
    edges = _edges(x, bins, range)
    # In NumPy the types of both ends decide how numbers are rounded.
    ends = (edges[0], edges[-1]) if range is None else (float(range[0]), float(range[1]))
    counts = _counts(x, edges, weighed, None if np.ndim(bins) else ends)
    if x.split is not None:
        counts = x.world.reduce(counts, "sum")
    if density:
        counts = counts / jnp.sum(counts) / jnp.diff(jnp.asarray(edges))
    found = (counts, jnp.asarray(edges))
    first, second = (Array(one, ArrayLayout(one.shape), x.world) for one in found)
    return first, second


def _real(x: Any) -> Array:
    """An array of numbers that have an order."""
    x = as_array(x)
    if x.dtype.kind == "c":
        raise TypeError(f"Bins of {x.dtype}: complex numbers have no order. Take abs or real.")
    return x


def _weighed(x: Any, weights: Any) -> tuple[Array, jax.Array | None]:
    """An array, and the weights of its block."""
    x = _real(x)
    if weights is None:
        return x, None
    x, weights = of_one_world(x, weights)
    if weights.shape != x.shape:
        raise ValueError(f"weights have shape {weights.shape}, the array {x.shape}.")
    if x.split is None:
        x = laid(x, weights.layout)
    return x, laid(weights, x.layout).block


def _summed(weights: jax.Array | None) -> jax.Array | None:
    """Weights in a type for their sums: floats for integers, as in NumPy."""
    return None if weights is None else weights.astype(type_of_means(weights.dtype))


def _counts(
    x: Array, edges: np.ndarray, weights: jax.Array | None, ends: tuple[Any, Any] | None
) -> jax.Array:
    """This node's counts; `ends` are those of bins of equal width, None for others."""
    if weights is None:
        index_type(x.size)
    traced = isinstance(x.block, Tracer)
    if x.dtype.kind in "iub" and not traced:
        block = np.asarray(x.block).astype(x.dtype if x.dtype.kind in "iu" else np.uint8)
        theirs = None if weights is None else _wide(weights)
        # With their number and ends NumPy adds up bin by bin, with edges it takes differences.
        bins = (edges, None) if ends is None else (len(edges) - 1, ends)
        counts = _narrow(np.histogram(block, *bins, weights=theirs)[0], weights)
    elif ends is not None and x.dtype.kind == "f" and x.itemsize > 2 and not traced:
        # NumPy's way for bins of equal width is fifty times as fast as a search among edges.
        about = len(edges) - 1, ends
        if weights is None:
            counts = jnp.asarray(_evenly(x.block.reshape(-1), *about))
        else:
            found = np.histogram(np.asarray(x.block), *about, weights=_wide(weights))[0]
            counts = _narrow(found, weights)
    else:
        places = _places(x.block.reshape(-1), edges)
        counts = _sums(places, len(edges) - 1, weights)
    return counts.astype(int) if weights is None else counts.astype(weights.dtype)


def _evenly(line: jax.Array, bins: int, ends: tuple[Any, Any]) -> np.ndarray:
    """Counts numbers in bins of equal width like NumPy, which itself counts those near an edge."""
    low, high = ends
    if low == high:  # NumPy's range is wider then
        low, high = low - 0.5, high + 0.5
    scale = bins / (high - low)
    margin = (bins + max(abs(low), abs(high)) * scale) * 8 * float(jnp.finfo(line.dtype).eps)
    if not margin < 0.05:
        return np.histogram(np.asarray(line), bins, ends)[0]
    counts, near = _away_from_edges(line, low, scale, margin, bins=bins)
    numbers = np.asarray(line)[np.asarray(near)]
    return np.asarray(counts) + np.histogram(numbers, bins, ends)[0]


@partial(jax.jit, static_argnames="bins")
def _away_from_edges(
    line: jax.Array, low: Any, scale: Any, margin: Any, *, bins: int
) -> tuple[jax.Array, jax.Array]:
    """Counts numbers that rounding puts into the right bin; flags those that are near an edge."""
    place = (line - low) * scale
    near = jnp.abs(place - jnp.round(place)) < margin
    inside = (place > 0) & (place < bins) & ~near  # NaN is not
    counts = jnp.bincount(jnp.where(inside, place, bins).astype(jnp.int32), length=bins + 1)
    return counts[:-1], near & (place > -1) & (place < bins + 1)


def _places(line: jax.Array, edges: np.ndarray) -> jax.Array:
    """The bin of each number; those outside go into one more. The last bin includes both edges.

    An integer is at or above an edge if it is at or above the edge rounded up: floats of 32 bits
    would not distinguish it from its neighbors.
    """
    line = line.astype(np.uint8) if line.dtype == bool else line
    bins, last = len(edges) - 1, edges[-1]
    if jnp.issubdtype(line.dtype, jnp.integer):
        about = np.iinfo(line.dtype)
        below = np.ceil(edges) < float(about.max + 1)  # exact as a float
        at_last = bool(below[-1]) and last >= about.min and last == np.ceil(last)
        edges = np.maximum(np.ceil(edges[below]), about.min).astype(line.dtype)
        last = np.asarray(last).astype(line.dtype) if at_last else None
    passed = jnp.searchsorted(jnp.asarray(edges), line, side="right")
    found = jnp.where((passed > 0) & (passed <= bins), passed - 1, bins)
    return found if last is None else jnp.where(line == last, bins - 1, found)


def _sums(places: jax.Array, bins: int, weights: jax.Array | None) -> jax.Array:
    """Numbers of elements of each bin, counted in integers, or the sums of their weights."""
    return _added(places, weights, bins + 1)[:-1]


def _wide(weights: jax.Array) -> np.ndarray:
    """Weights in float64 or complex128, in which NumPy adds them up."""
    found = np.asarray(weights)
    return found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)


def _narrow(sums: np.ndarray, weights: jax.Array | None) -> jax.Array:
    """Sums in the type of the weights, to which JAX itself would go by way of float32."""
    return jnp.asarray(sums if weights is None else sums.astype(weights.dtype))


def _added(places: jax.Array, weights: jax.Array | None, length: int) -> jax.Array:
    """The number of elements at each place, or the sums of their weights."""
    if weights is None:
        return jnp.bincount(places, length=length)
    flat, traced = weights.reshape(-1), isinstance(places, Tracer) or isinstance(weights, Tracer)
    if traced or weights.dtype.kind == "c" or namespace_of(weights) is not np:
        return jnp.bincount(places, flat, length=length)
    # In float64: a float32 that has reached 2^24 is not raised by ones.
    return _narrow(np.bincount(np.asarray(places).reshape(-1), _wide(flat), length), weights)


def histogram2d(
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Any = None,  # noqa: A002
    *,
    weights: Any = None,
    density: bool = False,
) -> tuple[Array, Array, Array]:
    """Counts pairs in boxes; returns counts and the edges of both axes, like `numpy.histogram2d`.

    Counts are integers, as those of `histogram`.

    Args:
        x: the first numbers of the pairs, ``[n]``.
        y: the second ones, ``[n]``.
        bins: the number of bins, or edges, for both axes; or a pair of these, one for each.
        range: a pair of pairs: the outer edges; None: the smallest and the largest element.
        weights: of each pair; None: 1 each.
        density: whether to divide by the sum and the area of each box.

    Raises:
        ValueError: the arrays differ in shape or do not have one axis, or a range is not finite or
            decreases.
        TypeError: the numbers are complex.

    Moves: two numbers from each node for each range that is not given, and one sum of the counts.
    """
    x, weighed = _weighed(x, weights)
    x, y = of_one_world(x, _real(y))
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"histogram2d takes two lines of one length, got {x.shape}, {y.shape}.")
    x = laid(x, y.layout) if x.split is None and weighed is None else x
    y = laid(y, x.layout)
    each = bins if hasattr(bins, "__len__") and len(bins) == 2 else (bins, bins)
    ranges = (None, None) if range is None else range
    edges = [_edges(*one) for one in zip((x, y), each, ranges, strict=True)]
    index_type(x.size)
    weighed = _summed(weighed)
    wide, high = (len(one) - 1 for one in edges)
    first, second = (_places(one.block, edge) for one, edge in zip((x, y), edges, strict=True))
    outside = (first == wide) | (second == high)
    places = jnp.where(outside, wide * high, first * high + second)
    counts = _sums(places, wide * high, weighed).reshape(wide, high)
    counts = counts if x.split is None else x.world.reduce(counts, "sum")
    if density:
        counts = counts / jnp.sum(counts) / np.outer(*(np.diff(one) for one in edges))
    a, b, c = (
        Array(one, ArrayLayout(one.shape), x.world) for one in (counts, *map(jnp.asarray, edges))
    )
    return a, b, c


def digitize(x: Any, bins: Any, *, right: bool = False) -> Array:
    """The number of the bin of each element, like `numpy.digitize`. Nothing moves.

    Args:
        x: the array.
        bins: the edges, rising or falling, the same on all nodes.
        right: whether a bin includes its right edge instead of its left one.

    Raises:
        ValueError: the edges neither rise nor fall.
        TypeError: the numbers are complex.
    """
    require_fit(bins)
    edges = np.asarray(bins)
    steps = np.diff(edges.astype(float))
    rises = bool((steps >= 0).all())
    if not (rises or (steps <= 0).all()):
        raise ValueError(f"The edges of bins must rise or fall, got {bins}.")
    passed = partial(_passed, edges=edges if rises else edges[::-1], right=right)
    return elementwise(lambda x: passed(x) if rises else len(edges) - passed(x), _real(x))


def _passed(x: jax.Array, edges: np.ndarray, *, right: bool) -> jax.Array:
    """The number of rising edges that are below each element (or, unless `right`, equal to it).

    An integer passes a fraction if it passes the fraction rounded up (`right`: down): floats of 32
    bits would not distinguish the integer from its neighbors.
    """
    x = x.astype(np.uint8) if x.dtype == bool else x
    side, always = "left" if right else "right", 0
    if jnp.issubdtype(x.dtype, jnp.integer) and edges.dtype.kind == "f":
        about, edges = np.iinfo(x.dtype), (np.floor if right else np.ceil)(edges)
        always = int((edges < float(about.min)).sum())
        edges = edges[always:]
        edges = edges[edges < float(about.max) + 1].astype(x.dtype)
    return jnp.searchsorted(jnp.asarray(edges), x, side=side) + always


def _edges(x: Array, bins: Any, given: tuple[float, float] | None) -> np.ndarray:
    if np.ndim(bins):
        if not np.size(bins):
            raise ValueError(f"bins must have at least 1 edge, got {bins}. Give 2 for one bin.")
        if (np.diff(np.asarray(bins, float)) < 0).any():
            raise ValueError(f"The edges of bins must rise, got {bins}.")
        return np.asarray(bins)
    if operator.index(bins) < 1:
        raise ValueError(f"bins must be at least 1, got {bins}. Give a number of bins, or edges.")
    if given is None:
        given = _ends(x) if x.size else (0.0, 1.0)
    low, high = map(float, given)
    if not (np.isfinite([low, high]).all() and low <= high):
        raise ValueError(f"The range of a histogram must be finite and rise, got {low} to {high}.")
    if low == high:
        low, high = low - 0.5, high + 0.5
    whole = x.dtype.kind in "iub"
    dtype = np.dtype(float) if whole else np.result_type(x.dtype, np.float32)
    return np.linspace(low, high, operator.index(bins) + 1, dtype=dtype)


def _ends(x: Array) -> tuple[Any, Any]:
    """The smallest and the largest element; NaN if there is one."""
    if x.split is None or isinstance(x.block, Tracer):
        return REDUCTIONS["min"](x), REDUCTIONS["max"](x)
    ends = _least_and_largest(x.block) if x.block.size else np.zeros(2, x.dtype)
    rows = np.asarray(x.world.gather(jnp.asarray(ends[None]), (1,) * x.world.nodes))
    rows = rows[np.array(x.counts) > 0]
    return rows[:, 0].min(), rows[:, 1].max()


def _least_and_largest(block: jax.Array) -> np.ndarray:
    on_host = all(device.platform == "cpu" for device in block.devices())
    if not on_host or block.dtype.kind not in "biuf":  # NumPy is slow with bfloat16
        return np.asarray(jnp.stack([jnp.min(block), jnp.max(block)]))
    numbers = np.asarray(block)
    return np.array([numbers.min(), numbers.max()])


def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Array:
    """The number of elements of each value 0, 1, ...; with weights their sums.

    Raises:
        ValueError: a value is negative, or weights have another shape.
        TypeError: the numbers are complex.

    Moves: two numbers from each node, the smallest and the largest, and one sum of the counts.
    """
    x, weighed = _weighed(x, weights)
    index_type(x.size)
    least, largest = (int(end) for end in (_ends(x) if x.size else (-1, -1)))
    if x.size and least < 0:
        raise ValueError(f"bincount counts the values 0, 1, ..., got {least}. Shift them.")
    length = max(minlength, largest + 1)
    # JAX compares the values with the length, which a narrow type may not hold.
    narrow = x.dtype.kind in "iu" and x.itemsize < 4
    block = x.block.astype(jnp.int32) if narrow else x.block
    counts = _added(block, _summed(weighed), length)
    if x.split is not None:
        counts = x.world.reduce(counts, "sum")
    return Array(counts, ArrayLayout((length,)), x.world)
