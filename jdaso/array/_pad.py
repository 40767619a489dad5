"""Arrays with more elements before and after those of each axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array, method
from ._layout import ArrayLayout, axis_of, counts_within, replaced
from ._move import take_around, take_rows
from ._shape import concat

_OWN_ELEMENTS = "edge", "reflect", "symmetric", "wrap"


@method("pad")
def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Array:
    """The array with more elements before and after those of each axis, like `numpy.pad`.

    Args:
        x: the array.
        pad_width: the number of new elements: one for all ends, a pair (before, after), a pair for
            each axis, or a dict of axes and pairs.
        mode: constant, or the array's own elements: edge, reflect, symmetric or wrap.
        constant_values: the new elements of mode constant, in the same forms as `pad_width`.

    Moves nothing with mode constant: new rows are on the first and the last node. In other modes
    rows are shared out evenly, and each moves once to each place that needs it.

    Raises:
        ValueError: there is no such mode, a number is negative or not whole, or there are not as
            many as axes; or an axis without elements has none to repeat.
    """
    x = as_array(x)
    widths = _pairs("pad_width", pad_width, x.ndim)
    if widths.dtype.kind not in "iu" or (widths < 0).any():
        raise ValueError(f"pad_width must be whole numbers, none negative, got {pad_width}.")
    if mode == "constant":
        return _with_constants(x, widths, _pairs("constant_values", constant_values, x.ndim))
    if mode not in _OWN_ELEMENTS:
        raise ValueError(
            f"There is no mode {mode!r}. Take constant, {', '.join(_OWN_ELEMENTS[:-1])} or "
            f"{_OWN_ELEMENTS[-1]}."
        )
    for axis in np.flatnonzero(widths.any(1)).tolist():
        size, (before, after) = x.shape[axis], widths[axis].tolist()
        if not size:
            raise ValueError(
                f"Axis {axis} has no elements that mode {mode!r} could repeat. Take constant."
            )
        if x.split == axis and mode == "wrap":
            x = take_around(x, axis, before + size + after, before)
            continue
        ends = np.arange(-before, 0), np.arange(size, size + after)
        own = [_repeated(mode, places, size) for places in ends]
        if x.split == axis:
            end = before + size + after
            final = ArrayLayout(replaced(x.shape, axis, end)).over(axis, x.world.nodes)
            ahead, behind = (
                take_rows(x, axis, index, counts_within(final, *places))
                for index, places in zip(own, ((0, before), (end - after, end)), strict=True)
            )
            x = concat([ahead, x, behind], axis)
        else:
            index = np.concatenate([own[0], np.arange(size), own[1]])
            layout = ArrayLayout(replaced(x.shape, axis, len(index)), x.split, x.counts)
            x = Array(jnp.take(x.block, jnp.asarray(index), axis), layout, x.world)
    return x


def _repeated(mode: str, places: np.ndarray, size: int) -> np.ndarray:
    """The indices below `size` of the elements that stand at places before 0, and from `size`."""
    if mode == "edge":
        return places.clip(0, size - 1)
    if mode == "wrap":
        return places % size
    once = mode == "reflect"  # the elements at the ends stand there once, in symmetric twice
    period = max(2 * (size - once), 1)
    around = places % period
    return np.where(around < size, around, period - (not once) - around)


def _with_constants(x: Array, widths: np.ndarray, values: np.ndarray) -> Array:
    if not x.ndim:
        return x
    shape = tuple(int(n + new) for n, new in zip(x.shape, widths.sum(1), strict=True))
    counts = np.array(x.counts)
    if x.split is not None:
        before, after = widths[x.split]
        counts[0] += before
        counts[-1] += after
        first, last = x.world.node == 0, x.world.node == x.world.nodes - 1
        widths[x.split] = before * first, after * last
    layout = ArrayLayout(shape, x.split, tuple(counts.tolist()))
    block = jnp.pad(x.block, widths.tolist(), constant_values=values.astype(x.dtype).tolist())
    return Array(block, layout, x.world)


def _pairs(name: str, given: Any, ndim: int) -> np.ndarray:
    """A pair for each axis, ``[ndim, 2]``."""
    if isinstance(given, Mapping):
        pairs = {axis_of(axis, ndim): pair for axis, pair in given.items()}
        given = [np.broadcast_to(pairs.get(axis, 0), 2) for axis in range(ndim)]
    try:
        return np.broadcast_to(np.asarray(given), (ndim, 2)).copy()
    except ValueError:
        raise ValueError(
            f"{name} must be one number, a pair, or a pair for each of {ndim} axes, got {given}."
        ) from None
