"""Indexing: slices and masks keep rows where they are, integers fetch rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array, method, of_one_world
from ._layout import ArrayLayout, balanced, replaced
from ._move import flat_rows, laid, resplit
from ._shape import expand_dims, flip, reshape, squeeze


@method("getitem")
def getitem(x: Array, key: Any) -> Array:
    """``x[key]``, as in NumPy.

    Args:
        x: the array.
        key: slices, integers, ``...``, None; a mask of the array's shape or of its first axes; or
            arrays of integers, the same on all nodes.

    Moves: slices nothing (with a negative step along the split: the rows); a mask the number of its
    rows; an integer on the split axis one row to each node; an array of integers its rows.
    """
    keys = key if isinstance(key, tuple) else (key,)
    if _is_element(x, keys):
        return Array(x.block[keys], _NUMBER, x.world)
    keys = tuple(np.asarray(one) if isinstance(one, list) else one for one in keys)
    masks = [one for one in keys if is_mask(one)]
    if len(masks) == 1 and masks[0] is keys[0] and not any(map(_is_array, keys[1:])):
        return _masked(x, keys)
    keys = full(_by_numbers(keys) if masks else keys, x.ndim)
    x, keys = without_new(x, keys)
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


_NUMBER = ArrayLayout(())


def _is_element(x: Array, keys: Sequence[Any]) -> bool:
    """Returns whether keys name one element, and this node has it."""
    if len(keys) != len(x.layout.shape) or (x.layout.split is not None and x.world.nodes > 1):
        return False
    sizes = x.layout.shape
    return all(type(k) is int and -n <= k < n for k, n in zip(keys, sizes, strict=True))


def _by_numbers(keys: Sequence[Any]) -> list[Any]:
    """Keys with the places of masks instead of masks."""
    found: list[Any] = []
    for one in keys:
        if is_mask(one) and not np.ndim(one):
            raise NotImplementedError("A boolean must be the only index. Index in two steps.")
        found += np.nonzero(np.asarray(one)) if is_mask(one) else [one]
    return found


def _is_array(one: Any) -> bool:
    return one is not None and np.ndim(one) > 0


def is_mask(one: Any) -> bool:
    """Returns whether an index is a mask."""
    return isinstance(one, bool) or getattr(getattr(one, "dtype", None), "kind", "") == "b"


def full(keys: Sequence[Any], ndim: int) -> list[Any]:
    """Returns keys with ``...`` spelled out, one for each axis and each None."""
    keys = [_plain(one) for one in keys]
    given = sum(one is not None and one is not Ellipsis for one in keys)
    if given > ndim or sum(one is Ellipsis for one in keys) > 1:
        raise IndexError(f"{given} indices for {ndim} axes, or more than one '...'. Give fewer.")
    at = next((k for k, one in enumerate(keys) if one is Ellipsis), len(keys))
    beside = keys[at - 1 : at] + keys[at + 1 : at + 2]
    if given == ndim and at and len(beside) == 2 and not any(map(_is_slice, beside)):
        if any(map(_is_array, keys)):
            raise NotImplementedError(
                "'...' stands for no axis here, between two indices of which NumPy would put the "
                "axes first. Leave '...' out, or move the axes with moveaxis."
            )
    return [*keys[:at], *[slice(None)] * (ndim - given), *keys[at + 1 :]]


def _is_slice(one: Any) -> bool:
    return one is None or isinstance(one, slice)


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


def without_new(x: Array, keys: list[Any]) -> tuple[Array, list[Any]]:
    """Returns the array with an axis for each None, and the keys of all its axes."""
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
        return Array(block, ArrayLayout(shape, x.split, x.counts), x.world)
    counts, first = sliced_counts(x, axis, chosen)
    count = counts[x.world.node]
    end = first + (count - 1) * step + 1 if count else 0
    block = jax.lax.slice_in_dim(x.block, first, end, step, axis)
    return Array(block, ArrayLayout(shape, axis, counts), x.world)


def sliced_counts(x: Array, axis: int, chosen: range) -> tuple[tuple[int, ...], int]:
    """Returns how many indices of a rising range each node has, and this node's first one."""
    node, begins = x.world.node, x.layout.begins
    ends = [_below(chosen, first) for first in (*begins, x.shape[axis])]
    counts = tuple(after - before for before, after in itertools.pairwise(ends))
    first = chosen.start + ends[node] * chosen.step - begins[node] if counts[node] else 0
    return counts, first


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
    whole = x.world.gather(part.block, part.counts, axis)
    return Array(whole, ArrayLayout(part.shape), x.world)


def _taken(x: Array, keys: list[Any], arrays: list[int]) -> Array:
    """Arrays of integers, broadcast against each other and the single numbers."""
    chosen = [k for k, one in enumerate(keys) if not isinstance(one, slice)]
    indices = [checked(keys[axis], x.shape[axis], axis) for axis in chosen]
    if x.split not in chosen:
        found = x.block[tuple(spread(keys, chosen, indices))]
        return Array(found, layout_taken(x, chosen, indices), x.world)
    return _fetched(x, keys, chosen, indices)


def _fetched(x: Array, keys: list[Any], chosen: list[int], indices: list[np.ndarray]) -> Array:
    """Places of the split axis and maybe others: each element moves once to each of its new places.

    The result is split evenly along the longest axis of the indices.
    """
    assert x.split is not None
    node, nodes, layout = x.world.node, x.world.nodes, x.layout
    every = np.broadcast_arrays(*indices)
    shape, first = every[0].shape, place_of(chosen)
    axis = int(np.argmax(shape))
    counts = balanced(shape[axis], nodes)
    ends = np.array(layout.begins) + np.array(x.counts)  # nodes without rows own none
    owner = np.searchsorted(ends, every[chosen.index(x.split)], side="right")
    local = [
        one - layout.begins[node] * (k == x.split) for k, one in zip(chosen, every, strict=True)
    ]
    sent, cuts = [], np.cumsum((0, *counts))
    for k in range(nodes):
        part = np.s_[(slice(None),) * axis + (slice(cuts[k], cuts[k + 1]),)]
        mine = owner[part] == node
        sent.append(x.block[tuple(spread(keys, chosen, [one[part][mine] for one in local]))])
    own = np.take(owner, range(cuts[node], cuts[node + 1]), axis)
    kept = [n for k, n in enumerate(x.shape) if k not in chosen]
    lead, rest = kept[:first], kept[first:]
    rows = x.world.trade(sent, [(*lead, int((own == k).sum()), *rest) for k in range(nodes)])
    order = np.argsort(np.argsort(own.reshape(-1), kind="stable"), kind="stable")
    block = jnp.take(jnp.concatenate(rows, first), jnp.asarray(order), first)
    whole = ArrayLayout((*lead, *shape, *rest), first + axis, counts)
    return Array(block.reshape(whole.block_shape(node)), whole, x.world)


def place_of(chosen: list[int]) -> int:
    """Returns the axis of the result at which those of index arrays are, as NumPy puts them."""
    return chosen[0] if chosen == list(range(chosen[0], chosen[-1] + 1)) else 0


def checked(index: Any, size: int, axis: int) -> np.ndarray:
    """Returns indices counted from the front.

    Raises:
        IndexError: one is out of range.
    """
    found = np.asarray(index)
    if found.size and not (-size <= found.min() and found.max() < size):
        raise IndexError(
            f"Indices {found.min()} to {found.max()} are out of range for axis {axis} of length "
            f"{size}."
        )
    found = found.astype(np.int64)  # a narrower type may not hold `size`
    return np.where(found < 0, found + size, found)


def spread(keys: list[Any], chosen: list[int], indices: list[np.ndarray]) -> list[Any]:
    """Returns the keys of all axes: indices of the chosen ones, the others whole."""
    found: list[Any] = [slice(None)] * len(keys)
    for axis, index in zip(chosen, indices, strict=True):
        found[axis] = index
    return found


def layout_taken(x: Array, chosen: list[int], indices: list[np.ndarray]) -> ArrayLayout:
    """Returns the layout if the split axis is sliced: only its place changes."""
    wide = np.broadcast_shapes(*(one.shape for one in indices))
    kept = [k for k in range(x.ndim) if k not in chosen]
    first = place_of(chosen) if chosen else 0
    sizes = [x.shape[k] for k in kept]
    shape = (*sizes[:first], *wide, *sizes[first:])
    if x.split is None:
        return ArrayLayout(shape)
    place = kept.index(x.split)
    return ArrayLayout(shape, place + len(wide) * (place >= first), x.counts)


def _masked(x: Array, keys: Sequence[Any]) -> Array:
    """A mask: of the first axes, alone or followed by slices of the others."""
    mask, rest = keys[0], keys[1:]
    x, mask = of_one_world(x, mask)
    if 0 in mask.shape and mask.ndim <= x.ndim:
        sizes = zip(mask.shape, x.shape, strict=False)
        mask = mask if any(n not in (0, m) for n, m in sizes) else _none_of(x, mask.ndim)
    if mask.shape != x.shape[: mask.ndim]:
        raise IndexError(
            f"The mask has shape {mask.shape}, the array {x.shape}. They must begin alike."
        )
    if mask.ndim == 0:
        x, mask = expand_dims(x, axis=0), reshape(mask, (1,))
    if mask.ndim > 1:
        flat = _flat if x.split is None else flat_rows
        x = flat(x, (mask.size, *x.shape[mask.ndim :]))
        mask = flat(mask, (x.shape[0],))
    found = _kept(x, mask)
    return getitem(found, (slice(None), *rest)) if rest else found


def _flat(x: Array, shape: Sequence[int]) -> Array:
    """A whole array in another shape."""
    return reshape(resplit(x, None), tuple(shape))


def _none_of(x: Array, ndim: int) -> Array:
    """A mask that selects nothing, for one that has an axis of length 0."""
    return as_array(np.zeros(x.shape[:ndim], bool))


def _kept(x: Array, mask: Array) -> Array:
    """The rows of a mask of the first axis; they stay where they are."""
    if x.split != 0:
        whole = np.asarray(resplit(mask, None).block)
        return getitem(x, np.flatnonzero(whole))
    mask = laid(mask, ArrayLayout(mask.shape, 0, x.counts))
    rows = x.block[np.flatnonzero(np.asarray(mask.block))]
    counts = tuple(x.world.numbers(np.array([len(rows)]))[:, 0].tolist())
    return Array(rows, ArrayLayout((sum(counts), *x.shape[1:]), 0, counts), x.world)
