"""Functions of neighbouring elements: each node gets the few rows beside its own from others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from .._mpi.arrays import Ranges
from ._array import Array, as_array, of_one_world
from ._layout import ArrayLayout, Axes, axes_of, axis_of, overlap, replaced, shifted
from ._move import laid, resplit
from ._reduce import type_of_means
from ._shape import expand_dims

MODES = "full", "same", "valid"


def rows_at(x: Array, parts: list[slice]) -> jax.Array:
    """Returns the rows of a range of the split axis; `parts` has each node's range."""
    node, nodes, axis = x.world.node, x.world.nodes, x.split or 0
    if nodes == 1:
        return jax.lax.slice_in_dim(x.block, parts[0].start, parts[0].stop, axis=axis)
    mine, wanted = x.layout.slice_of(node), parts[node]
    sent = [shifted(overlap(mine, part), mine.start) for part in parts]
    got = [shifted(overlap(wanted, x.layout.slice_of(k)), wanted.start) for k in range(nodes)]
    shape = replaced(x.shape, axis, wanted.stop - wanted.start)
    return x.world.move(x.block, Ranges(axis, sent), shape, Ranges(axis, got))


def _wider(x: Array, before: int, after: int) -> list[slice]:
    """Each node's rows with some before and after them; none for a node without rows."""
    size = x.shape[x.split or 0]
    own = [x.layout.slice_of(node) for node in range(x.world.nodes)]
    return [
        slice(max(0, part.start - before), min(size, part.stop + after))
        if part.stop > part.start
        else part
        for part in own
    ]


def convolve(a: Any, v: Any, mode: str = "full") -> Array:
    """The discrete convolution ``sum_k a[i - k] v[k]`` of two lines, like `numpy.convolve`.

    Args:
        a: ``[n]``.
        v: ``[m]``.
        mode: ``"full"``: all n + m - 1 places at which both overlap; ``"same"``: the max(n, m) in
            their middle; ``"valid"``: those at which the shorter line lies inside the longer one.

    Moves the shorter line to all nodes, and across each border between nodes the shorter line's
    length, less one, of the longer one. The result is split like the longer one. Split lines are
    not for programs of `jax.jit` and derivatives, as `gradient` and `trapezoid` along the split.

    Raises:
        ValueError: an array does not have one axis or no elements, or there is no such mode.
    """
    return _of_lines(a, v, mode)


def _of_lines(a: Any, v: Any, mode: str, *, reverses: bool = False) -> Array:
    """See `convolve`; `reverses` if NumPy reverses the result where the second line is longer."""
    long, short = of_one_world(a, v)
    if long.ndim != 1 or short.ndim != 1 or not long.size or not short.size or mode not in MODES:
        raise ValueError(
            f"convolve takes two lines with elements, and full, same or valid, got the shapes "
            f"{long.shape} and {short.shape}, and {mode!r}."
        )
    swapped = short.size > long.size
    if swapped:
        long, short = short, long
    before = short.size // 2 if swapped and reverses else (short.size - 1) // 2
    return _convolved(long, resplit(short, None).block, mode, before)


def _convolved(x: Array, weights: jax.Array, mode: str, before: int) -> Array:
    """The convolution of own rows, with as many before them as the weights need.

    Args:
        x: the longer line.
        weights: the shorter one.
        mode: see `convolve`.
        before: places of the full convolution before those of mode "same".
    """
    width, node = len(weights), x.world.node if x.counts else 0
    first = {"full": 0, "same": before, "valid": width - 1}[mode]
    end = {"full": x.size + width - 1, "same": first + x.size, "valid": x.size}[mode]
    # Place i of all n + m - 1 needs rows i - m + 1 to i; the last node has those at the end.
    begins = x.layout.begins if x.counts else (0,)
    cuts = np.clip([*begins, end], first, end).tolist()
    parts = [
        slice(min(max(begin - width + 1, 0), x.size), min(stop, x.size))
        if stop > begin
        else slice(0, 0)
        for begin, stop in itertools.pairwise(cuts)
    ]
    rows = rows_at(x, parts) if x.counts else x.block[parts[0]]
    counts, kind = tuple(np.diff(cuts).tolist()), jnp.result_type(x.dtype, weights.dtype)
    begin, stop = cuts[node], cuts[node + 1]
    block = jnp.zeros((0,), kind)
    if stop > begin:
        lacking = max(width - 1 - begin, 0), max(stop - x.size, 0)
        block = _valid(jnp.pad(rows, lacking).astype(kind), weights.astype(kind))
    return Array(block, ArrayLayout((sum(counts),), x.split, counts if x.counts else ()), x.world)


@jax.jit
def _valid(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums at the places where the weights lie inside the rows; whole numbers exactly."""
    if jnp.issubdtype(rows.dtype, jnp.inexact):
        return jnp.convolve(rows, weights, "valid")
    width, size = len(weights), len(rows) - len(weights) + 1
    kind = jnp.int32 if rows.dtype == bool else rows.dtype

    def add(total: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
        part = jax.lax.dynamic_slice_in_dim(rows, width - 1 - k, size)
        return total + part.astype(kind) * weights[k].astype(kind), None

    total, _ = jax.lax.scan(add, jnp.zeros(size, kind), jnp.arange(width))
    return total.astype(rows.dtype)


def correlate(a: Any, v: Any, mode: str = "valid") -> Array:
    """The correlation ``sum_n a[n + k] conj(v[n])`` of two lines, like `numpy.correlate`.

    See `convolve`, which this is with v reversed and conjugated.
    """
    v = as_array(v)
    if v.ndim == 1:
        v = resplit(v, None)
        v = Array(jnp.conj(v.block[::-1]), v.layout, v.world)
    return _of_lines(a, v, mode, reverses=True)


def gradient(f: Any, *spacing: Any, axis: Axes | None = None) -> Array | list[Array]:
    """Central differences of second order; at both ends of an axis those of first order.

    Args:
        f: the array.
        spacing: nothing: 1; a number: the distance of the places along each axis; or for each axis
            a number or the places, the same on all nodes.
        axis: the axes; None: all.

    Returns:
        The derivative along the axis, in the layout of f; of several axes a list.

    Moves two rows across each border between nodes.

    Raises:
        ValueError: an axis has fewer than two indices, or there are not as many distances as axes,
            or places as indices.
    """
    f = as_array(f)
    along = (
        [axis_of(k, f.ndim) for k in axis] if isinstance(axis, Sequence) else axes_of(axis, f.ndim)
    )
    each = [1.0] * len(along) if not spacing else list(spacing)
    each = each * len(along) if len(each) == 1 and not np.ndim(each[0]) else each
    if len(set(along)) != len(along) or f.dtype == bool:
        raise ValueError(f"gradient takes numbers and each axis once, got {f.dtype} and {axis}.")
    if len(each) != len(along):
        raise ValueError(f"gradient of {len(along)} axes got {len(each)} distances. Give 1 or all.")
    found = [_slope(f, k, one) for k, one in zip(along, each, strict=True)]
    return found[0] if len(found) == 1 else found


def _slope(f: Array, axis: int, spacing: Any) -> Array:
    size, places = f.shape[axis], np.asarray(spacing)
    if places.ndim == 1 and len(places):
        places = places - places[0]  # in 64 bits: large places round where they are close
    if size < 2 or places.ndim > 1 or (places.ndim and len(places) != size):
        raise ValueError(
            f"gradient along axis {axis} of the shape {f.shape} takes two indices or more, and one "
            f"distance or {size} places, got {places.shape or places}."
        )
    block, part, inside = f.block, slice(0, size), slice(None)
    if f.split == axis:
        parts = _wider(f, 1, 1)
        block, part, own = rows_at(f, parts), parts[f.world.node], f.layout.slice_of(f.world.node)
        inside = slice(own.start - part.start, own.stop - part.start)
    kind = type_of_means(f.dtype) if f.dtype.kind in "biu" else f.dtype
    if not block.shape[axis]:
        return Array(block.astype(kind), f.layout, f.world)
    here = jnp.asarray(places[part] if places.ndim else places, jnp.finfo(kind).dtype)
    slope = jnp.gradient(block.astype(kind), here, axis=axis)
    assert isinstance(slope, jax.Array)
    return Array(slope[(slice(None),) * axis + (inside,)], f.layout, f.world)


def trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: SupportsIndex = -1) -> Array:
    """The integral of y along an axis by the trapezoidal rule.

    Args:
        y: the array.
        x: the places, of one axis or of y's shape; None: at distances dx.
        dx: the distance of places.
        axis: the axis.

    Moves, along the split, a row across each border between nodes and one reduction of the result.

    Raises:
        ValueError: the places have another shape.
    """
    y = as_array(y)
    along = axis_of(axis, y.ndim)
    heights, widths = _between(y, along, lambda lower, upper: (lower + upper) / 2), dx
    if x is not None:
        x = as_array(x if isinstance(x, Array | jax.Array) else _from_zero(x))
        if x.shape not in ((y.shape[along],), y.shape):
            raise ValueError(f"trapezoid of y {y.shape} along axis {along}: x has {x.shape}.")
        if x.shape != y.shape:
            for k in range(y.ndim):
                x = x if k == along else expand_dims(x, axis=k)
        x = x if y.split is None or x.shape[y.split] == 1 else _like(x, y)
        widths = _between(x, along, lambda lower, upper: upper - lower)
    return (heights * widths).sum(axis=along)


def _from_zero(x: Any) -> np.ndarray:
    """Places less the first one, in 64 bits: large ones round where they are close."""
    places = np.asarray(x)
    return places - places.reshape(-1)[0] if places.size else places


def _like(x: Array, y: Array) -> Array:
    """The array, split with the rows of another one."""
    return laid(x, ArrayLayout(x.shape, y.split, y.counts))


def _between(x: Array, axis: int, function: Callable[[jax.Array, jax.Array], jax.Array]) -> Array:
    """A function of each element and the next one along an axis: on the first one's node."""
    block, counts = x.block, x.counts
    size = max(x.shape[axis] - 1, 0)
    if x.split == axis:
        block = rows_at(x, _wider(x, 0, 1))
        ends = np.minimum(np.cumsum(x.counts), size)
        counts = tuple(np.diff(ends, prepend=0).tolist())
    lower, upper = (
        jax.lax.slice_in_dim(block, first, block.shape[axis] - 1 + first, axis=axis)
        if block.shape[axis]
        else block
        for first in (0, 1)
    )
    layout = ArrayLayout(replaced(x.shape, axis, size), x.split, counts)
    return Array(function(lower, upper), layout, x.world)
