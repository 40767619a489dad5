"""Axes swapped, turned and added, under NumPy's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

from ._array import Array, as_array, method
from ._layout import axis_of
from ._shape import expand_dims, flip, permute_dims


@method("swapaxes")
def swapaxes(x: Any, axis1: SupportsIndex, axis2: SupportsIndex) -> Array:
    """The array with two axes swapped. Nothing moves."""
    x = as_array(x)
    first, second = axis_of(axis1, x.ndim), axis_of(axis2, x.ndim)
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return permute_dims(x, order)


def fliplr(x: Any) -> Array:
    """Elements in the opposite order along the second axis; moves what `flip` moves."""
    return flip(_of_at_least(2, x, "fliplr"), axis=1)


def flipud(x: Any) -> Array:
    """Elements in the opposite order along the first axis; moves what `flip` moves."""
    return flip(_of_at_least(1, x, "flipud"), axis=0)


def rot90(x: Any, k: int = 1, axes: Sequence[SupportsIndex] = (0, 1)) -> Array:
    """The array turned k times by 90 degrees, from the first of two axes towards the second.

    Moves nothing, or for an axis that is turned round and split what `flip` moves.

    Raises:
        ValueError: the axes are not two different ones.
    """
    x = as_array(x)
    pair = [axis_of(axis, x.ndim) for axis in axes]
    if len(set(pair)) != 2 or len(pair) != 2:
        raise ValueError(f"rot90 turns two different axes, got axes={tuple(axes)}.")
    turns = k % 4
    if turns == 2:
        return flip(x, axis=pair)
    if turns == 1:
        x = flip(x, axis=pair[1])
    if turns:
        x = swapaxes(x, *pair)
    return flip(x, axis=pair[1]) if turns == 3 else x


def _of_at_least(ndim: int, x: Any, name: str) -> Array:
    x = as_array(x)
    if x.ndim < ndim:
        raise ValueError(f"{name} takes an array of {ndim} axes or more, the shape is {x.shape}.")
    return x


def atleast_1d(x: Any) -> Array:
    """The array, a number with one axis of length 1. Nothing moves."""
    x = as_array(x)
    return x if x.ndim else expand_dims(x)


def atleast_2d(x: Any) -> Array:
    """The array, one of fewer axes as a row, ``[1, n]``. Nothing moves."""
    x = atleast_1d(x)
    return x if x.ndim > 1 else expand_dims(x)


def atleast_3d(x: Any) -> Array:
    """The array, one of fewer axes as ``[1, n, 1]`` or ``[n, m, 1]``. Nothing moves."""
    x = atleast_2d(x)
    return x if x.ndim > 2 else expand_dims(x, axis=2)
