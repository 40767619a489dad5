"""Makes arrays: each node only its own block."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._array import Array, as_array
from ._layout import ArrayLayout, Shape, axis_of, replaced
from ._move import resplit
from ._together import together
from ._whole_numbers import require_fit, require_inside, require_range
from ._world import world

SPLIT = "JDASO_ARRAY_SPLIT"
"""The variable that names the split of new arrays for which none is given, for tests."""


def chosen(split: int | None, ndim: int) -> int | None:
    """Returns the split of a new array: the one given, else that of `SPLIT` if it has the axis."""
    if split is not None:
        return axis_of(split, ndim)
    told = os.environ.get(SPLIT, "")
    return int(told) if told and int(told) < ndim else None


def asarray(
    obj: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    copy: bool | None = None,
    split: int | None = None,
) -> Array:
    """Returns an array of numbers that all nodes have; each keeps its own rows. Nothing moves.

    Args:
        obj: numbers, nested lists, an array of NumPy or JAX, or an `Array`; the same on all nodes.
        dtype: the type; None: as given.
        device: of this node's block; None: JAX's default.
        copy: whether to copy; None: if needed.
        split: the axis to divide over nodes; None: as it is.

    Raises:
        ValueError: `copy` is False, and the numbers have to be copied; or whole numbers of 64 bits
            do not fit the 32 that JAX has without `jax_enable_x64`.
    """
    if copy is False and not _as_is(obj, dtype):
        raise ValueError(
            f"asarray of {type(obj).__name__} has to copy, and copy is False. Give copy=None."
        )
    if isinstance(obj, Array):
        block = jnp.array(obj.block, dtype=dtype, copy=bool(copy))
        found = Array(placed(block, device), obj.layout, obj.world)
        return found if split is None else resplit(found, split)
    if dtype is None:
        require_fit(obj)
    elif (kind := jax.dtypes.canonicalize_dtype(dtype)) != np.dtype(dtype) and kind.kind in "iu":
        require_range(_whole_numbers_in(obj), kind)
    block = jnp.array(obj, dtype=dtype) if copy else jnp.asarray(obj, dtype=dtype)
    found = as_array(placed(block.astype(block.dtype), device))  # not of a weak type
    return resplit(found, chosen(split, found.ndim))


def _whole_numbers_in(obj: Any) -> np.ndarray:
    """The numbers of what has no array of JAX in it: only such numbers may have 64 bits."""
    known = any(isinstance(x, jax.Array) for x in jax.tree.leaves(obj))
    return np.zeros(0) if known else np.asarray(obj)


def _as_is(obj: Any, dtype: Any) -> bool:
    """Returns whether numbers are a block already."""
    return isinstance(obj, Array | jax.Array) and (dtype is None or obj.dtype == jnp.dtype(dtype))


def placed(block: jax.Array, device: Any) -> jax.Array:
    """Returns a block on a device; None: its own."""
    return block if device is None else jax.device_put(block, device)


def from_dlpack(
    x: Any, *, device: Any = None, copy: bool | None = None, split: int | None = None
) -> Array:
    """Returns an array made from another library's, the same on all nodes. Nothing moves.

    Args:
        x: an array with ``__dlpack__``: of CuPy, PyTorch, NumPy, JAX, ... An `Array` keeps its
            layout.
        device: of this node's block; None: where the numbers are.
        copy: whether to copy; None: if needed.
        split: the axis to divide over nodes; None: as it is.
    """
    block = x if isinstance(x, Array) else jnp.from_dlpack(x, device=device, copy=copy)
    return asarray(block, device=device, copy=copy or None, split=split)


def from_blocks(block: Any, *, split: int = 0) -> Array:
    """Returns the array that the nodes' blocks make, one after another. Only counts move.

    Args:
        block: this node's rows, any number of them; of one dtype and, but for the split, one shape.
        split: the axis along which the blocks follow one another.

    Raises:
        ValueError: the blocks do not match; on every node, naming the node that differs.
        OSError: another node failed to make a block; with that node's message.
        ValueError: whole numbers of 64 bits do not fit the 32 of JAX; OSError on the other nodes.
    """
    at = world()
    with together(at, "make its block"):
        require_fit(block)
        here = jnp.asarray(block)
        axis = axis_of(split, here.ndim)
    about = f"{here.dtype} {replaced(here.shape, axis, -1)}"
    texts = at.texts("make an array of blocks", f"{here.shape[axis]} {about}")
    counts = tuple(int(text.split(" ", 1)[0]) for text in texts)
    for node, text in enumerate(texts):
        if text.split(" ", 1)[1] != texts[0].split(" ", 1)[1]:
            raise ValueError(
                f"The blocks do not make an array: node 0 has {texts[0]}, node {node} {text} "
                "(rows, dtype, shape with -1 for rows). Give blocks of one dtype and shape."
            )
    return Array(here, ArrayLayout(replaced(here.shape, axis, sum(counts)), axis, counts), at)


def filled(make: Callable[[Shape], jax.Array], shape: Any, device: Any, split: Any) -> Array:
    """Returns an array whose blocks are made by `make`, given their shapes."""
    at, shape = world(), shape_of(shape)
    layout = ArrayLayout(shape).over(chosen(split, len(shape)), at.nodes)
    return Array(placed(make(layout.block_shape(at.node)), device), layout, at)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None, split: int | None = None) -> Array:
    """An array of zeros. Nothing moves."""
    return filled(lambda block: jnp.zeros(block, dtype), shape, device, split)


def ones(shape: Any, *, dtype: Any = None, device: Any = None, split: int | None = None) -> Array:
    """An array of ones. Nothing moves."""
    return filled(lambda block: jnp.ones(block, dtype), shape, device, split)


def full(
    shape: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    split: int | None = None,
) -> Array:
    """An array of one value, by default of the value's type. Nothing moves."""
    value = scalar(fill_value)
    if dtype is None:
        require_fit(value)
    kind = jnp.result_type(value) if dtype is None else dtype
    require_inside(value, kind)
    return filled(lambda block: jnp.full(block, value, kind), shape, device, split)


def scalar(x: Any) -> Any:
    """Returns an array without axes as a number (a traced one as JAX's), all else as it is."""
    if isinstance(x, Array) and not x.ndim:
        x = x.block
    known = isinstance(x, jax.Array | np.ndarray) and not isinstance(x, Tracer)
    return np.asarray(x)[()] if known and not x.ndim else x


def empty(shape: Any, *, dtype: Any = None, device: Any = None, split: int | None = None) -> Array:
    """An array of zeros: JAX has no uninitialized memory. Nothing moves."""
    return zeros(shape, dtype=dtype, device=device, split=split)


def _like(x: Any, make: Callable[[Shape, Any], jax.Array], dtype: Any, device: Any) -> Array:
    x = as_array(x)
    block = make(x.layout.block_shape(x.world.node), x.dtype if dtype is None else dtype)
    return Array(placed(block, device), x.layout, x.world)


def zeros_like(x: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array of zeros, with the shape, type and layout of another one. Nothing moves."""
    return _like(x, jnp.zeros, dtype, device)


def ones_like(x: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array of ones, with the shape, type and layout of another one. Nothing moves."""
    return _like(x, jnp.ones, dtype, device)


def empty_like(x: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array of zeros, with the shape, type and layout of another one. Nothing moves."""
    return _like(x, jnp.zeros, dtype, device)


def full_like(x: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array of one value, with the shape, type and layout of another one. Nothing moves."""
    value, x = scalar(fill_value), as_array(x)
    require_inside(value, x.dtype if dtype is None else dtype)
    return _like(x, lambda block, kind: jnp.full(block, value, kind), dtype, device)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    split: int | None = None,
) -> Array:
    """Numbers from start (0 if only one bound is given) up to, but without, stop. Nothing moves."""
    begin, end = (0, start) if stop is None else (start, stop)
    if all(np.asarray(one).dtype.kind in "iub" for one in (begin, end, step)):
        begin, step = int(begin), int(step)
        size, kind = len(range(begin, int(end), step)), int
        kept = jnp.result_type(int) if dtype is None else jax.dtypes.canonicalize_dtype(dtype)
        if size and (dtype is None or kept != np.dtype(dtype)):
            require_range(np.array([begin, begin + (size - 1) * step]), kept)
    else:
        size, kind = max(0, math.ceil((end - begin) / step)), float
    dtype = jnp.result_type(kind) if dtype is None else dtype
    at = world()
    layout = ArrayLayout((size,)).over(chosen(split, 1), at.nodes)
    part = layout.slice_of(at.node) if layout.counts else slice(0, size)
    if kind is int:  # of 64 bits exactly
        numbers = np.arange(begin + part.start * step, begin + part.stop * step, step)
    else:
        numbers = begin + np.arange(part.start, part.stop) * step
    return Array(placed(jnp.asarray(numbers.astype(jnp.dtype(dtype))), device), layout, at)


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
    split: int | None = None,
) -> Array:
    """Numbers from start to stop at equal distances; complex if either bound is. Nothing moves.

    Numbers of an integer type are rounded down, as in `numpy.linspace`.
    """
    return spaced(start, stop, num, dtype, device, endpoint=endpoint, split=split)


def spaced(
    start: Any,
    stop: Any,
    num: int,
    dtype: Any,
    device: Any = None,
    *,
    endpoint: bool,
    split: int | None,
    mapped: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> Array:
    """Returns numbers at equal distances, mapped by a function of 64-bit numbers on the host."""
    size, at, start, stop = operator.index(num), world(), scalar(start), scalar(stop)
    if size < 0:
        raise ValueError(f"linspace and its kind make 0 numbers or more, got num={num}.")
    if np.ndim(start) or np.ndim(stop):
        raise ValueError(f"linspace and its kind take two numbers, got {start!r} and {stop!r}.")
    kind = complex if np.result_type(start, stop).kind == "c" else float
    layout = ArrayLayout((size,)).over(chosen(split, 1), at.nodes)
    part = layout.slice_of(at.node) if layout.counts else slice(0, size)
    steps = size - 1 if endpoint else size
    width = np.subtract(stop, start, dtype=kind) / max(steps, 1)
    numbers = start + np.arange(part.start, part.stop) * width
    if endpoint and size > 1 and part.start < part.stop == size:
        numbers[-1] = stop
    numbers = mapped(numbers)
    kind = complex if numbers.dtype.kind == "c" else float
    if dtype is not None and jnp.issubdtype(dtype, jnp.integer):
        numbers = np.floor(numbers) if mapped is np.asarray else np.trunc(numbers)
    block = jnp.asarray(numbers, jnp.result_type(kind) if dtype is None else dtype)
    return Array(placed(block, device), layout, at)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    *,
    k: int = 0,
    dtype: Any = None,
    device: Any = None,
    split: int | None = None,
) -> Array:
    """A matrix with ones on a diagonal. Nothing moves.

    Raises:
        ValueError: a number of rows or columns is negative.
    """
    shape = n_rows, n_rows if n_cols is None else n_cols
    if min(shape) < 0:
        raise ValueError(f"eye makes 0 rows and columns or more, got the shape {shape}.")
    at = world()
    layout = ArrayLayout(shape).over(chosen(split, 2), at.nodes)
    first = [0, 0]
    if layout.split is not None:
        first[layout.split] = layout.begins[at.node]
    block = layout.block_shape(at.node)
    across = jnp.arange(block[1]) + first[1] - (jnp.arange(block[0])[:, None] + first[0])
    ones = (across == k).astype(jnp.result_type(float) if dtype is None else dtype)
    return Array(placed(ones, device), layout, at)


def shape_of(shape: Any) -> Shape:
    """Returns a shape, given as one number or several."""
    return tuple(map(operator.index, (shape,) if np.ndim(shape) == 0 else shape))
