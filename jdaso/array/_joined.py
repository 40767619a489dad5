"""Arrays joined to one, and parted into several, under NumPy's names; they stand on `concat`."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import numpy as np

from ._array import Array, as_array
from ._axes import atleast_1d, atleast_2d, atleast_3d
from ._index import getitem
from ._layout import axis_of, balanced
from ._shape import concat, expand_dims


def hstack(arrays: Sequence[Any]) -> Array:
    """Arrays one after another along the second axis, lines along their only one; see `concat`."""
    given = [atleast_1d(x) for x in arrays]
    return concat(given, axis=0 if given and given[0].ndim == 1 else 1)


def vstack(arrays: Sequence[Any]) -> Array:
    """Arrays one after another along the first axis; lines are rows. See `concat`.

    Split lines become a matrix of split columns: nothing moves if all have one layout.
    """
    return concat([atleast_2d(x) for x in arrays], axis=0)


def dstack(arrays: Sequence[Any]) -> Array:
    """Arrays one after another along a third axis, which those of fewer get; see `concat`."""
    return concat([atleast_3d(x) for x in arrays], axis=2)


def column_stack(arrays: Sequence[Any]) -> Array:
    """Arrays one after another along the second axis; lines are columns. See `concat`."""
    given = [atleast_1d(x) for x in arrays]
    return concat([x if x.ndim > 1 else expand_dims(x, axis=1) for x in given], axis=1)


def append(x: Any, values: Any, axis: SupportsIndex | None = None) -> Array:
    """Values after an array along an axis (None: both as flat arrays); see `concat`."""
    return concat([x, values], axis=None if axis is None else axis_of(axis, as_array(x).ndim))


def split(x: Any, indices_or_sections: Any, axis: SupportsIndex = 0) -> list[Array]:
    """Parts of an array along an axis. Nothing moves: each node keeps what it has.

    Args:
        x: the array.
        indices_or_sections: the number of equal parts, or the indices at which to cut.
        axis: the axis.

    Raises:
        ValueError: the length is no multiple of the number; `array_split` takes any.
    """
    x = as_array(x)
    size = x.shape[axis_of(axis, x.ndim)]
    if not np.ndim(indices_or_sections):
        parts = operator.index(indices_or_sections)
        if parts < 1 or size % parts:
            raise ValueError(
                f"{size} indices of axis {axis} make no {parts} equal parts. Take array_split, or "
                "give the indices at which to cut."
            )
    return array_split(x, indices_or_sections, axis)


def array_split(x: Any, indices_or_sections: Any, axis: SupportsIndex = 0) -> list[Array]:
    """Parts of an array, of lengths that differ by 1 at most; see `split`."""
    x = as_array(x)
    along = axis_of(axis, x.ndim)
    if np.ndim(indices_or_sections):
        cuts = [operator.index(one) for one in np.asarray(indices_or_sections)]
    else:
        parts = operator.index(indices_or_sections)
        if parts < 1:
            raise ValueError(f"An array has one part or more, got {parts}.")
        cuts = list(itertools.accumulate(balanced(x.shape[along], parts)))[:-1]
    lead = (slice(None),) * along
    ranges = itertools.pairwise([0, *cuts, x.shape[along]])
    return [getitem(x, (*lead, slice(begin, end))) for begin, end in ranges]


def _along(axis: int, name: str) -> Callable[[Any, Any], list[Array]]:
    def call(x: Any, indices_or_sections: Any) -> list[Array]:
        x = as_array(x)
        if x.ndim <= axis and not (axis == 1 and x.ndim == 1) or (axis == 0 and x.ndim == 1):
            raise ValueError(
                f"{name} takes an array of {max(axis + 1, 2)} axes or more, got {x.shape}."
            )
        return split(x, indices_or_sections, min(axis, x.ndim - 1))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Parts of an array along axis {axis}; see `split`."
    return call


hsplit = _along(1, "hsplit")
vsplit = _along(0, "vsplit")
dsplit = _along(2, "dsplit")
