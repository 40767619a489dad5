"""Assignment that makes a new array: each node changes its own block.

================================  ============================================================
index of the split axis           moves
================================  ============================================================
a slice                           the value's rows that are on another node than in ``x[key]``
a whole number, an array of them  the value to all nodes, if it is split
a mask, and one value or rows     nothing if mask and array have one layout; the value as an
that all chosen places take       operand of a function of elements
a mask, and a value of its rows   the mask and the value to all nodes
================================  ============================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._array import METHODS, Array, as_array, method, of_one_world
from ._elementwise import elementwise, piece
from ._index import checked, full, is_mask, layout_taken, place_of, sliced_counts, without_new
from ._layout import ArrayLayout
from ._move import laid, resplit
from ._shape import broadcast_to, expand_dims, flip, squeeze
from ._varied import beside, varied
from ._whole_numbers import is_outside, require_inside


@method("at")
class At:
    """``x.at[key]``: the places of an array to change; see `AtPlaces`.

    Args:
        x: the array.
    """

    def __init__(self, x: Array):
        self._x = x

    def __getitem__(self, key: Any, /) -> AtPlaces:
        return AtPlaces(self._x, key)


class AtPlaces:
    """Places of an array: each method returns a new array; the module's table lists what moves.

    Args:
        x: the array.
        key: as in ``x[key]``.

    Values are broadcast to the shape of ``x[key]``, and converted to its type. All but an `Array`
    are the same on all nodes. Where a place repeats, `add`, `multiply`, `min` and `max` apply each
    value, `set` one. For booleans `add` is or, and `multiply` is and.

    Raises:
        IndexError: an index is out of range, or a mask's shape is not that of the array's first
            axes.
        TypeError: the results would have another type than the array.
        ValueError: the value does not fit the places.
    """

    def __init__(self, x: Array, key: Any):
        self._x, self._key = x, key

    def set(self, value: Any) -> Array:
        """Returns the array with the value at these places."""
        return _changed(self._x, self._key, value, "set")

    def add(self, value: Any) -> Array:
        """Returns the array with the value added at these places."""
        return _changed(self._x, self._key, value, "add")

    def multiply(self, value: Any) -> Array:
        """Returns the array with these places times the value."""
        return _changed(self._x, self._key, value, "multiply")

    def divide(self, value: Any) -> Array:
        """Returns the array with these places divided by the value."""
        return _changed(self._x, self._key, value, "divide")

    def power(self, value: Any) -> Array:
        """Returns the array with these places to the power of the value."""
        return _changed(self._x, self._key, value, "power")

    def min(self, value: Any) -> Array:
        """Returns the array with the smaller of both at these places."""
        return _changed(self._x, self._key, value, "min")

    def max(self, value: Any) -> Array:
        """Returns the array with the larger of both at these places."""
        return _changed(self._x, self._key, value, "max")

    def get(self) -> Array:
        """Returns ``x[key]``."""
        return METHODS["getitem"](self._x, self._key)


def _changed(x: Array, key: Any, value: Any, how: str) -> Array:
    keys = key if isinstance(key, tuple) else (key,)
    keys = tuple(np.asarray(one) if isinstance(one, list) else one for one in keys)
    require_inside(value, x.dtype)
    value = float(value) if is_outside(value, jnp.result_type(int)) else value
    x, value = of_one_world(x, value)
    value, how = _cast(value, x.dtype), _possible(how, x.dtype)
    if any(is_mask(one) for one in keys):
        return _at_mask(x, keys, value, how)
    keys = full(keys, x.ndim)
    new = tuple(axis for axis, one in enumerate(keys) if one is None)
    x, keys = without_new(x, keys)
    wanted = _shape_at(x, keys)
    while value.ndim > len(wanted) and value.shape[0] == 1:
        value = squeeze(value, 0)
    if not _fits(value.shape, wanted):
        raise ValueError(f"A value of {value.shape} does not fit the shape {wanted} of x[key].")
    found = _at(x, keys, value, wanted, how)
    return squeeze(found, new) if new else found


def _cast(value: Array, dtype: np.dtype) -> Array:
    return Array(value.block.astype(dtype), value.layout, value.world)


def _possible(how: str, dtype: np.dtype) -> str:
    """The way to change an array of a type: checked on all nodes, even those without the places.

    Raises:
        TypeError: the results would have another type.
    """
    boolean = jnp.issubdtype(dtype, jnp.bool_)
    if boolean:
        how = {"add": "max", "multiply": "min"}.get(how, how)
    refused = {
        "divide": not jnp.issubdtype(dtype, jnp.inexact),
        "power": boolean,
        "min": jnp.issubdtype(dtype, jnp.complexfloating),
        "max": jnp.issubdtype(dtype, jnp.complexfloating),
    }
    if refused.get(how, False):
        raise TypeError(f"x.at[].{how} cannot return {dtype}. Call x.astype(...) first.")
    return how


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Returns whether a shape can be broadcast to another one."""
    both = zip(shape[::-1], wanted[::-1], strict=False)
    return len(shape) <= len(wanted) and all(n in (1, m) for n, m in both)


def _shape_at(x: Array, keys: list[Any]) -> tuple[int, ...]:
    """The shape of ``x[keys]``."""
    chosen = [axis for axis, one in enumerate(keys) if not isinstance(one, slice)]
    wide = np.broadcast_shapes(*(np.shape(keys[axis]) for axis in chosen))
    both = zip(x.shape, keys, strict=True)
    kept = [len(range(n)[one]) for n, one in both if isinstance(one, slice)]
    first = place_of(chosen) if chosen else 0
    return (*kept[:first], *wide, *kept[first:])


def _at(x: Array, keys: list[Any], value: Array, wanted: tuple[int, ...], how: str) -> Array:
    """Changes places given by slices, integers and arrays of integers, one key for each axis."""
    for axis, one in enumerate(keys):
        if not isinstance(one, slice):
            keys[axis] = checked(one, x.shape[axis], axis)
    key = None if x.split is None else keys[x.split]
    if isinstance(key, slice):
        return _at_slice(x, keys, value, wanted, how)
    whole = broadcast_to(resplit(value, None), wanted).block
    if key is None:
        return _put(x, keys, whole, how)
    whole = varied(whole, x.world)
    arrays = {axis: one for axis, one in enumerate(keys) if not isinstance(one, slice)}
    every = dict(zip(arrays, np.broadcast_arrays(*arrays.values()), strict=True))
    rows = x.layout.slice_of(x.world.node)
    flat = {axis: one.reshape(-1) for axis, one in every.items()}
    mine = np.flatnonzero((flat[x.split or 0] >= rows.start) & (flat[x.split or 0] < rows.stop))
    place, ndim = place_of(list(arrays)), every[x.split or 0].ndim
    lead, rest = whole.shape[:place], whole.shape[place + ndim :]
    places = whole.reshape(*lead, flat[x.split or 0].size, *rest)
    taken = jnp.take(places, jnp.asarray(mine), place)
    if not mine.size:
        return Array(beside(x.block, whole), x.layout, x.world)
    for axis, one in flat.items():
        keys[axis] = one[mine] - (rows.start if axis == x.split else 0)
    return _put(x, keys, taken, how)


def _at_slice(x: Array, keys: list[Any], value: Array, wanted: tuple[int, ...], how: str) -> Array:
    """Changes places where the split axis has a slice: each node its part of the slice."""
    axis = x.split or 0
    chosen = [k for k, one in enumerate(keys) if not isinstance(one, slice)]
    around = [keys[k] for k in chosen]
    steps = range(x.shape[axis])[keys[axis]]
    place = layout_taken(x, chosen, around).split or 0
    if steps.step < 0:
        value = _turned(value, place - len(wanted))
        steps = steps[::-1]
    counts, first = sliced_counts(x, axis, steps)
    own = counts[x.world.node]
    part = piece(value, ArrayLayout(wanted, place, counts), x.world)
    keys[axis] = slice(first, first + (own - 1) * steps.step + 1 if own else first, steps.step)
    return _put(x, keys, part, how)


def _turned(value: Array, axis: int) -> Array:
    return flip(value, axis=axis) if -axis <= value.ndim else value


def _put(x: Array, keys: list[Any], part: Any, how: str) -> Array:
    if not np.broadcast_to(False, x.block.shape)[tuple(keys)].size:
        return Array(beside(x.block, part), x.layout, x.world)
    found = getattr(x.block.at[tuple(keys)], how)(part)
    return Array(found.astype(x.dtype), x.layout, x.world)


_MERGED = {
    "set": lambda old, new: new,
    "add": jnp.add,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "power": jnp.power,
    "min": jnp.minimum,
    "max": jnp.maximum,
}


def _at_mask(x: Array, keys: Sequence[Any], value: Array, how: str) -> Array:
    """Changes the places of a mask of the first axes."""
    if len(keys) > 1:
        raise NotImplementedError("A mask must be the only index of x.at[]. Change in two steps.")
    mask = as_array(keys[0])
    if mask.shape != x.shape[: mask.ndim]:
        raise IndexError(
            f"The mask has shape {mask.shape}, the array {x.shape}. They must begin alike."
        )
    if value.ndim <= x.ndim - mask.ndim:  # all chosen places take the same
        if not _fits(value.shape, x.shape[mask.ndim :]):
            wanted = x.shape[mask.ndim :]
            raise ValueError(f"A value of {value.shape} does not fit {wanted}, a place of x[mask].")
        for _ in range(x.ndim - mask.ndim):
            mask = expand_dims(mask, axis=mask.ndim)

        def merged(mask: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
            # Elsewhere 1: a slope that is not finite there would make the whole gradient NaN.
            both = jnp.where(mask, old, 1), jnp.where(mask, new, 1)
            return jnp.where(mask, _MERGED[how](*both).astype(old.dtype), old)

        return laid(elementwise(merged, mask, x, value), x.layout)
    places = np.nonzero(np.asarray(resplit(mask, None).block))
    return _changed(x, places, value, how)
