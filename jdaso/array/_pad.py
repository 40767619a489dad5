"""Arrays with more elements before and after those of each axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array, method
from ._layout import ArrayLayout, axis_of, replaced
from ._move import take_rows

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
        index = np.pad(np.arange(x.shape[axis]), widths[axis].tolist(), mode)  # pyright: ignore
        if x.split == axis:
            x = take_rows(x, axis, index)
        else:
            layout = ArrayLayout(replaced(x.shape, axis, len(index)), x.split, x.counts)
            x = Array(jnp.take(x.block, jnp.asarray(index), axis), layout, x.world)
    return x


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
