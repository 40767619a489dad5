"""Indexing: slices keep rows where they are, a mask too, whole numbers fetch rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._array import METHODS, Array, method, of_one_world
from ._layout import Layout, replaced
from ._move import flat_rows, laid, resplit, take_rows
from ._shape import expand_dims, flip, squeeze


@method("getitem")
def getitem(x: Array, key: Any) -> Array:
    """``x[key]``, as NumPy's.

    Args:
        x: the array.
        key: slices, whole numbers, ``...``, None; a mask of the array's shape or of its first axes;
            or arrays of whole numbers, the same on all nodes.

    Moves: slices nothing (of a negative step along the split: the rows); a mask the number of its
    rows; a whole number on the split axis one row to each node; an array of them its rows.
    """
    keys = key if isinstance(key, tuple) else (key,)
    keys = tuple(np.asarray(one) if isinstance(one, list) else one for one in keys)
    masks = [one for one in keys if _is_mask(one)]
    if masks:
        return _masked(x, keys)
    keys = _full(keys, x.ndim)
    x, keys = _without_new(x, keys)
    arrays = [axis for axis, one in enumerate(keys) if not isinstance(one, slice | int)]
    for axis, one in enumerate(keys):
        if isinstance(one, slice):
            x = _sliced(x, axis, one)
    if arrays:
        return _taken(x, keys, arrays)
    numbers = [axis for axis, one in enumerate(keys) if isinstance(one, int)]
    for axis in numbers:
        x = _one(x, axis, keys[axis])
    return squeeze(x, tuple(numbers)) if numbers else x


def _is_mask(one: Any) -> bool:
    return isinstance(one, bool) or getattr(getattr(one, "dtype", None), "kind", "") == "b"


def _full(keys: Sequence[Any], ndim: int) -> list[Any]:
    """Keys with ``...`` spelled out, one for each axis and each None."""
    keys = [_plain(one) for one in keys]
    given = sum(one is not None and one is not Ellipsis for one in keys)
    if given > ndim or sum(one is Ellipsis for one in keys) > 1:
        raise IndexError(f"{given} indices for {ndim} axes, or more than one '...'. Give fewer.")
    at = next((k for k, one in enumerate(keys) if one is Ellipsis), len(keys))
    return [*keys[:at], *[slice(None)] * (ndim - given), *keys[at + 1 :]]


def _plain(one: Any) -> Any:
    if one is None or one is Ellipsis or isinstance(one, slice):
        return one
    if isinstance(one, Array):
        return np.asarray(one) if one.ndim else int(one)
    if isinstance(one, int | np.integer) or (hasattr(one, "__index__") and np.ndim(one) == 0):
        return int(one)
    found = np.asarray(one)
    if found.dtype.kind not in "iu" and found.size:
        raise IndexError(f"An index must be whole numbers, slices or a mask, got {found.dtype}.")
    return found.astype(int)


def _without_new(x: Array, keys: list[Any]) -> tuple[Array, list[Any]]:
    """The array with the axes that None asks for, and the keys of all of its axes."""
    for axis, one in enumerate(keys):
        if one is None:
            x = expand_dims(x, axis=axis)
    return x, [slice(None) if one is None else one for one in keys]


def _sliced(x: Array, axis: int, part: slice) -> Array:
    size = x.shape[axis]
    begin, stop, step = part.indices(size)
    chosen = range(begin, stop, step)
    if chosen == range(size):
        return x
    if step < 0:
        if not chosen:
            return _sliced(x, axis, slice(0, 0))
        return flip(_sliced(x, axis, slice(chosen[-1], chosen[0] + 1, -step)), axis=axis)
    shape = replaced(x.shape, axis, len(chosen))
    if axis != x.split:
        block = jax.lax.slice_in_dim(x.block, begin, max(stop, begin), step, axis)
        return Array(block, Layout(shape, x.split, x.counts), x.world)
    ends = [_below(chosen, first) for first in (*x.layout.begins, size)]
    counts = tuple(after - before for before, after in itertools.pairwise(ends))
    count, own = counts[x.world.node], begin + ends[x.world.node] * step
    first = own - x.layout.begins[x.world.node] if count else 0
    end = first + (count - 1) * step + 1 if count else 0
    block = jax.lax.slice_in_dim(x.block, first, end, step, axis)
    return Array(block, Layout(shape, axis, counts), x.world)


def _below(chosen: range, bound: int) -> int:
    """The number of indices of a rising range that are below a bound."""
    return len(range(chosen.start, min(max(bound, chosen.start), chosen.stop), chosen.step))


def _one(x: Array, axis: int, index: int) -> Array:
    """One index of an axis, which stays as an axis of length 1."""
    size = x.shape[axis]
    if not -size <= index < size:
        raise IndexError(f"Index {index} is out of range for axis {axis} of length {size}.")
    index %= size
    part = _sliced(x, axis, slice(index, index + 1))
    if axis != x.split:
        return part
    rows = x.world.gather(jnp.moveaxis(part.block, axis, 0), part.counts)
    return Array(jnp.moveaxis(rows, 0, axis), Layout(part.shape), x.world)


def _taken(x: Array, keys: list[Any], arrays: list[int]) -> Array:
    """Arrays of whole numbers, broadcast against each other and the single numbers."""
    chosen = [k for k, one in enumerate(keys) if not isinstance(one, slice)]
    indices = [_checked(keys[axis], x.shape[axis], axis) for axis in chosen]
    if x.split not in chosen:
        found = x.block[tuple(_spread(keys, chosen, indices))]
        layout = _layout_taken(x, chosen, indices, found.ndim)
        return Array(found, layout, x.world)
    if len(chosen) == 1:
        (axis,), (index,) = chosen, indices
        rows = take_rows(x, axis, index.reshape(-1))
        shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        if index.ndim == 1:
            return rows
        return METHODS["reshape"](rows, shape)
    whole = resplit(x, None)  # indices of several axes, the split among them
    found = whole.block[tuple(_spread(keys, chosen, indices))]
    return Array(found, Layout(found.shape), x.world)


def _checked(index: Any, size: int, axis: int) -> np.ndarray:
    found = np.asarray(index)
    if found.size and not (-size <= found.min() and found.max() < size):
        raise IndexError(
            f"Indices {found.min()} to {found.max()} are out of range for axis {axis} of length "
            f"{size}."
        )
    return np.where(found < 0, found + size, found)


def _spread(keys: list[Any], chosen: list[int], indices: list[np.ndarray]) -> list[Any]:
    found: list[Any] = [slice(None)] * len(keys)
    for axis, index in zip(chosen, indices, strict=True):
        found[axis] = index
    return found


def _layout_taken(x: Array, chosen: list[int], indices: list[np.ndarray], ndim: int) -> Layout:
    """The layout if the split axis is sliced: only its place changes."""
    shape = list(
        jax.eval_shape(
            lambda a: a[tuple(_spread([0] * x.ndim, chosen, indices))],
            jax.ShapeDtypeStruct(x.shape, x.dtype),
        ).shape
    )
    if x.split is None:
        return Layout(tuple(shape))
    together = chosen == list(range(chosen[0], chosen[-1] + 1))
    wide = ndim - (x.ndim - len(chosen))
    before = sum(axis < x.split for axis in chosen)
    first = wide if not together or chosen[0] < x.split else 0
    return Layout(tuple(shape), x.split - before + first, x.counts)


def _masked(x: Array, keys: Sequence[Any]) -> Array:
    """A mask: of the first axes, alone or followed by slices of the others."""
    mask, rest = keys[0], keys[1:]
    if not _is_mask(mask) or any(_is_mask(one) for one in rest):
        raise NotImplementedError("A mask must come first, and only one. Index in two steps.")
    x, mask = of_one_world(x, mask)
    if mask.shape != x.shape[: mask.ndim]:
        raise IndexError(
            f"The mask has shape {mask.shape}, the array {x.shape}. They must begin alike."
        )
    if mask.ndim == 0:
        x, mask = expand_dims(x, axis=0), METHODS["reshape"](mask, (1,))
    if mask.ndim > 1:
        x = flat_rows(x, (mask.size, *x.shape[mask.ndim :]))
        mask = flat_rows(mask, (x.shape[0],))
    found = _kept(x, mask)
    return getitem(found, (slice(None), *rest)) if rest else found


def _kept(x: Array, mask: Array) -> Array:
    """The rows of a mask of the first axis; they stay where they are."""
    if x.split != 0:
        whole = np.asarray(resplit(mask, None).block)
        return getitem(x, np.flatnonzero(whole))
    mask = laid(mask, Layout(mask.shape, 0, x.counts))
    rows = x.block[np.flatnonzero(np.asarray(mask.block))]
    counts = tuple(x.world.numbers(np.array([len(rows)]))[:, 0].tolist())
    return Array(rows, Layout((sum(counts), *x.shape[1:]), 0, counts), x.world)
