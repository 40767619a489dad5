"""Makes arrays: each node only its own block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array
from ._layout import Layout, axis_of, balanced, replaced
from ._move import laid, resplit
from ._together import together
from ._world import using, world


def asarray(
    obj: Any, *, dtype: Any = None, split: int | None = None, copy: bool | None = None
) -> Array:
    """Returns an array of numbers that all nodes have; each keeps its own rows. Nothing moves.

    Args:
        obj: numbers, nested lists, an array of NumPy or JAX, or an `Array`; the same on all nodes.
        dtype: the type; None: as given.
        split: the axis to divide over nodes; None: as it is.
        copy: whether to copy; None: if needed.
    """
    if isinstance(obj, Array):
        found = obj if dtype is None else Array(obj.block.astype(dtype), obj.layout, obj.world)
        return found if split is None else resplit(found, split)
    block = jnp.array(obj, dtype=dtype) if copy else jnp.asarray(obj, dtype=dtype)
    found = as_array(block)
    return found if split is None else resplit(found, split)


def from_blocks(block: Any, *, split: int = 0) -> Array:
    """Returns the array that the nodes' blocks make, one after another. Nothing but counts moves.

    Args:
        block: this node's rows, any number of them; of one dtype and, but for the split, one shape.
        split: the axis along which the blocks follow one another.

    Raises:
        ValueError: the blocks do not fit; on every node, with the node that has another one.
        OSError: another node has no block; with its words.
    """
    at = world()
    with together(at, "make its block"):
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
    return Array(here, Layout(replaced(here.shape, axis, sum(counts)), axis, counts), at)


def filled(make: Callable[[tuple[int, ...]], jax.Array], shape: Any, split: int | None) -> Array:
    """Returns an array whose elements are alike: `make` gives a block of a shape."""
    at, shape = world(), _shape_of(shape)
    layout = Layout(shape).over(None if split is None else axis_of(split, len(shape)), at.nodes)
    return Array(make(layout.block_shape(at.node)), layout, at)


def zeros(shape: Any, *, dtype: Any = None, split: int | None = None) -> Array:
    """An array of zeros."""
    return filled(lambda block: jnp.zeros(block, dtype), shape, split)


def ones(shape: Any, *, dtype: Any = None, split: int | None = None) -> Array:
    """An array of ones."""
    return filled(lambda block: jnp.ones(block, dtype), shape, split)


def full(shape: Any, value: Any, *, dtype: Any = None, split: int | None = None) -> Array:
    """An array of one value."""
    return filled(lambda block: jnp.full(block, value, dtype), shape, split)


def empty(shape: Any, *, dtype: Any = None, split: int | None = None) -> Array:
    """An array of zeros: JAX has no memory without a value."""
    return zeros(shape, dtype=dtype, split=split)


def like(make: Callable[..., Array]) -> Callable[..., Array]:
    """Returns the function that makes an array in the layout of another one."""

    def call(x: Any, *values: Any, dtype: Any = None) -> Array:
        x = as_array(x)
        with using(x.world):
            found = make(x.shape, *values, dtype=x.dtype if dtype is None else dtype, split=x.split)
        return laid(found, x.layout)

    call.__name__ = call.__qualname__ = f"{make.__name__}_like"
    call.__doc__ = f"As `{make.__name__}`, with shape, type and layout of another array."
    return call


zeros_like, ones_like, full_like, empty_like = map(like, (zeros, ones, full, empty))


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    split: int | None = None,
) -> Array:
    """Numbers from start (from 0 if it stands alone) up to, but without, stop."""
    begin, end = (0, start) if stop is None else (start, stop)
    if all(np.asarray(one).dtype.kind in "iub" for one in (begin, end, step)):
        size, kind = len(range(int(begin), int(end), int(step))), int
    else:
        size, kind = max(0, math.ceil((end - begin) / step)), float
    dtype = jnp.result_type(kind) if dtype is None else dtype
    return _line(size, lambda k: (begin + k * step).astype(dtype), split)


def linspace(
    start: Any,
    stop: Any,
    num: int,
    *,
    dtype: Any = None,
    endpoint: bool = True,
    split: int | None = None,
) -> Array:
    """Numbers from start to stop at equal distances."""
    whole = np.linspace(start, stop, num, endpoint=endpoint)
    dtype = jnp.result_type(float) if dtype is None else dtype
    return asarray(jnp.asarray(whole, dtype), split=split)


def eye(
    rows: int,
    columns: int | None = None,
    *,
    k: int = 0,
    dtype: Any = None,
    split: int | None = None,
) -> Array:
    """A matrix with ones on a diagonal."""
    shape = rows, rows if columns is None else columns
    at = world()
    layout = Layout(shape).over(split, at.nodes)
    first = [0, 0]
    if layout.split is not None:
        first[layout.split] = layout.begins[at.node]
    block = layout.block_shape(at.node)
    across = jnp.arange(block[1]) + first[1] - (jnp.arange(block[0])[:, None] + first[0])
    return Array(
        (across == k).astype(jnp.result_type(float) if dtype is None else dtype), layout, at
    )


def _line(size: int, value: Callable[[jax.Array], jax.Array], split: int | None) -> Array:
    """An array of one axis, whose elements are a function of their index."""
    at = world()
    counts = balanced(size, at.nodes) if split is not None else ()
    layout = Layout((size,), None if split is None else axis_of(split, 1), counts)
    begin = layout.begins[at.node] if counts else 0
    return Array(value(begin + jnp.arange(layout.block_shape(at.node)[0])), layout, at)


def _shape_of(shape: Any) -> tuple[int, ...]:
    return (int(shape),) if np.ndim(shape) == 0 else tuple(int(n) for n in shape)
