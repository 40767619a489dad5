"""`unique` with NumPy's options: of elements (`_unique`), or of the rows of an axis."""

from __future__ import annotations

from typing import Any, SupportsIndex

import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array
from ._elementwise import isnan, minimum
from ._index import getitem
from ._layout import ArrayLayout, axis_of
from ._move import resplit
from ._reduce import count_nonzero, index_type
from ._shape import concat, moveaxis
from ._unique import UniqueAll, unique_all, unique_counts, unique_values


def unique(
    x: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: SupportsIndex | None = None,
    *,
    equal_nan: bool = True,
) -> Array | tuple[Array, ...]:
    """The different elements, or rows of an axis, in ascending order, like `numpy.unique`.

    Args:
        x: the array.
        return_index: whether to return the first place of each, too.
        return_inverse: whether to return the index of each element's value, too.
        return_counts: whether to return how often each occurs, too.
        axis: compares the parts of the array along this axis; None: its elements.
        equal_nan: whether all NaN are one value; rows with NaN always differ.

    Returns:
        The values, or a tuple of them and what else is wanted, in this order.

    Without an axis, moves what `unique_values`, `unique_counts` or `unique_all` moves; along an
    axis the different rows of each node to all nodes.

    Raises:
        ValueError: the array has no such axis, or rows of no elements or of complex numbers.
    """
    x = as_array(x)
    axis = None if axis is None or (x.ndim == 1 and axis_of(axis, 1) == 0) else axis
    one_nan = equal_nan and jnp.issubdtype(x.dtype, jnp.inexact)
    if axis is not None:
        found = _of_axis(x, axis_of(axis, x.ndim))
    elif return_index or return_inverse or (equal_nan and x.dtype.kind == "c"):
        found = unique_all(x)
    elif return_counts:
        values, counts = unique_counts(x)
        found = UniqueAll(values, counts, counts, counts)
    else:
        values = unique_values(x)
        return values[: _number(values)] if one_nan else values
    if axis is None and one_nan:
        found = _with_one_nan(found)
    wanted = True, return_index, return_inverse, return_counts
    chosen = tuple(one for one, is_wanted in zip(found, wanted, strict=True) if is_wanted)
    return chosen if len(chosen) > 1 else found.values


def _with_one_nan(found: UniqueAll) -> UniqueAll:
    """The result with the first NaN for all of them, which are the last values."""
    values, indices, inverse, counts = found
    kept = _number(values)
    if kept == values.size:
        return found
    total = getitem(counts, slice(kept - 1, None)).sum().astype(counts.dtype).reshape((1,))
    return UniqueAll(
        values[:kept],
        indices[:kept],
        minimum(inverse, np.asarray(kept - 1, inverse.dtype)),
        concat([counts[: kept - 1], total]),
    )


def _number(values: Array) -> int:
    """The number of values if all NaN, which are the last ones, are one."""
    nans = int(count_nonzero(isnan(values)))
    return values.size - max(nans - 1, 0)


def _of_axis(x: Array, axis: int) -> UniqueAll:
    """The different rows: each node's own, gathered, and of these the different ones."""
    x = moveaxis(x, axis, 0)
    x = x if x.split is None else resplit(x, 0)
    rows = np.asarray(x.block)
    if rows.dtype.kind == "c" or (not x.size and x.shape[0]):
        raise ValueError(
            f"unique along an axis takes rows of ordered numbers, got {x.dtype} of {x.shape}."
        )
    own, first, inverse, counts = _unique_rows(rows)
    if x.split is None or x.world.nodes == 1:
        return _as_arrays(x, axis, own, first, inverse, counts)
    at, kind = x.world, index_type(x.shape[0])
    sizes = at.numbers(np.array([len(own)]))[:, 0].tolist()
    numbers = np.stack([first + x.layout.begins[at.node], counts], 1)
    every = np.asarray(at.gather(jnp.asarray(own), sizes))
    numbers = np.asarray(at.gather(jnp.asarray(numbers, kind), sizes))
    # Rows come in the order of nodes, so that the first of equal ones has the first place.
    values, chosen, where, _ = _unique_rows(every)
    total = np.bincount(where, numbers[:, 1], len(values))
    begin = sum(sizes[: at.node])
    here = where[begin : begin + len(own)][inverse]
    return _as_arrays(x, axis, values, numbers[chosen, 0], here, total)


def _unique_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    wide = rows.astype(np.float32) if rows.dtype.kind == "V" else rows  # bfloat16, for example
    found = np.unique(wide, return_index=True, return_inverse=True, return_counts=True, axis=0)
    values, first, inverse, counts = found
    return values.astype(rows.dtype), first, inverse.reshape(-1), counts


def _as_arrays(x: Array, axis: int, *found: np.ndarray) -> UniqueAll:
    """The result as arrays, whole on each node; the inverse is split like the rows."""
    values, *numbers = found
    kind = index_type(x.shape[0])
    whole = Array(jnp.asarray(values, x.dtype), ArrayLayout(values.shape), x.world)
    first, inverse, counts = (jnp.asarray(one, kind) for one in numbers)
    layout = ArrayLayout((x.shape[0],), x.split, x.counts)
    return UniqueAll(
        moveaxis(whole, 0, axis),
        Array(first, ArrayLayout(first.shape), x.world),
        Array(inverse, layout, x.world),
        Array(counts, ArrayLayout(counts.shape), x.world),
    )
