"""Other shapes of the same elements: most move nothing."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._array import Array, as_array, method, of_one_world
from ._layout import ArrayLayout, Axes, axes_of, axis_of, counts_within, replaced
from ._move import flat_rows, laid, resplit, take_around


def reshape(x: Any, shape: Axes, *, copy: bool | None = None) -> Array:
    """The same elements, in their order, in another shape, split along its first axis.

    Args:
        x: the array.
        shape: the new one; one size may be -1.
        copy: makes no difference, since JAX's arrays are immutable.

    Moves the elements that are then on another node; nothing without a split.
    """
    x = as_array(x)
    wanted = _whole(x.size, _each(shape))
    if wanted == x.shape:
        return x
    if x.split is None or not wanted:
        return Array(resplit(x, None).block.reshape(wanted), ArrayLayout(wanted), x.world)
    return flat_rows(x, wanted)


@method("reshape")
def _reshaped(x: Any, *shape: Any, copy: bool | None = None) -> Array:
    """``x.reshape(2, -1)``, or with a tuple."""
    return reshape(x, shape[0] if len(shape) == 1 else shape, copy=copy)


def _each(numbers: Axes) -> tuple[int, ...]:
    """One number or several, NumPy's included, as Python's."""
    several = isinstance(numbers, Sequence) or (isinstance(numbers, np.ndarray) and numbers.ndim)
    given: Any = numbers if several else (numbers,)
    return tuple(operator.index(one) for one in given)


def _whole(size: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known:
        shape = tuple(size // known if n == -1 else n for n in shape)
    if math.prod(shape) != size or min(shape, default=0) < 0:
        raise ValueError(f"{size} elements do not fit the shape {shape}. Give another one.")
    return shape


@method("ravel")
def ravel(x: Any) -> Array:
    """The elements along one axis; see `reshape`."""
    return reshape(x, (-1,))


@method("flatten")
def flatten(x: Any) -> Array:
    """The elements along one axis; see `reshape`."""
    return reshape(x, (-1,))


@method("permute_dims")
def permute_dims(x: Any, axes: Sequence[int]) -> Array:
    """The array with its axes in another order. Nothing moves."""
    x = as_array(x)
    order = [axis_of(axis, x.ndim) for axis in axes]
    if sorted(order) != list(range(x.ndim)):
        raise ValueError(
            f"axes {tuple(axes)} are not a permutation of {x.ndim} axes. Name each once."
        )
    split = None if x.split is None else order.index(x.split)
    layout = ArrayLayout(tuple(x.shape[k] for k in order), split, x.counts)
    return Array(jnp.transpose(x.block, order), layout, x.world)


@method("moveaxis")
def moveaxis(x: Any, source: Axes, destination: Axes) -> Array:
    """The array with axes at other places. Nothing moves."""
    x = as_array(x)
    taken = [axis_of(k, x.ndim) for k in _each(source)]
    put = [axis_of(k, x.ndim) for k in _each(destination)]
    order = [k for k in range(x.ndim) if k not in taken]
    for place, axis in sorted(zip(put, taken, strict=True)):
        order.insert(place, axis)
    return permute_dims(x, order)


@method("expand_dims")
def expand_dims(x: Any, axis: Axes = 0) -> Array:
    """The array with one more axis of length 1, or several, at these places. Nothing moves."""
    x = as_array(x)
    for place in axes_of(axis, x.ndim + len(_each(axis))):
        shape = (*x.shape[:place], 1, *x.shape[place:])
        split = None if x.split is None else x.split + (x.split >= place)
        x = Array(jnp.expand_dims(x.block, place), ArrayLayout(shape, split, x.counts), x.world)
    return x


@method("squeeze")
def squeeze(x: Any, axis: Axes | None = None) -> Array:
    """The array without axes of length 1 (None: all). Moves one row if the split is among them."""
    x = as_array(x)
    if axis is None:
        axis = tuple(k for k, n in enumerate(x.shape) if n == 1)
    axes = axes_of(axis, x.ndim)
    if wrong := [k for k in axes if x.shape[k] != 1]:
        raise ValueError(f"axis {wrong[0]} has length {x.shape[wrong[0]]}, not 1. Leave it out.")
    if x.split in axes:
        x = resplit(x, None)
    shape = tuple(n for k, n in enumerate(x.shape) if k not in axes)
    split = None if x.split is None else x.split - sum(k < x.split for k in axes)
    return Array(jnp.squeeze(x.block, axes), ArrayLayout(shape, split, x.counts), x.world)


@method("flip")
def flip(x: Any, axis: Axes | None = None) -> Array:
    """Elements in the opposite order along axes (None: all). Moves the rows of the split axis."""
    x = as_array(x)
    axes = axes_of(axis, x.ndim)
    block = jnp.flip(x.block, axes)
    if x.split not in axes:
        return Array(block, x.layout, x.world)
    node, nodes = x.world.node, x.world.nodes
    other = nodes - 1 - node
    counts = x.counts[::-1]
    nothing = replaced(x.layout.block_shape(node), x.split, 0)
    sent = [block if k == other else jnp.zeros(nothing, x.dtype) for k in range(nodes)]
    shape = replaced(x.shape, x.split, counts[node])
    found = x.world.trade(sent, [shape if k == other else nothing for k in range(nodes)])
    return Array(jnp.asarray(found[other]), ArrayLayout(x.shape, x.split, counts), x.world)


@method("roll")
def roll(x: Any, shift: Axes, axis: Axes | None = None) -> Array:
    """Elements shifted along axes, the last ones to the front (None: of the flat array).

    Moves nothing, or along the split the rows that are then on another node.
    """
    x = as_array(x)
    if axis is None:
        return reshape(roll(ravel(x), sum(_each(shift)), axis=0), x.shape)
    for by, along in np.broadcast(_each(shift), _each(axis)):
        along = axis_of(along, x.ndim)
        if along != x.split:
            x = Array(jnp.roll(x.block, by, along), x.layout, x.world)
        elif by % max(x.shape[along], 1):
            x = take_around(x, along, x.shape[along], int(by))
    return x


@method("broadcast_to")
def broadcast_to(x: Any, shape: Axes) -> Array:
    """The array broadcast to a shape. Moves the single row of a split axis that is repeated."""
    x, wanted = as_array(x), _each(shape)
    if np.broadcast_shapes(x.shape, wanted) != wanted:
        raise ValueError(f"The shape {x.shape} does not repeat to {wanted}. Give another one.")
    axis = None if x.split is None else x.split + len(wanted) - x.ndim
    if axis is None or wanted[axis] != x.shape[x.split or 0]:
        return Array(jnp.broadcast_to(resplit(x, None).block, wanted), ArrayLayout(wanted), x.world)
    layout = ArrayLayout(wanted, axis, x.counts)
    return Array(jnp.broadcast_to(x.block, layout.block_shape(x.world.node)), layout, x.world)


def concat(arrays: Sequence[Any], axis: int | None = 0) -> Array:
    """Arrays one after another along an axis (None: flat ones).

    Along another axis than the split nothing moves if all have one layout; along the split the rows
    that are then on another node.
    """
    given = of_one_world(*arrays)
    if not given:
        raise ValueError("concat of no arrays. Give at least one.")
    if axis is None:
        given, axis = [ravel(x) for x in given], 0
    if len({x.ndim for x in given}) > 1:
        raise ValueError(f"concat of shapes {[x.shape for x in given]}, which differ in axes.")
    along = axis_of(axis, given[0].ndim)
    shape = replaced(given[0].shape, along, sum(x.shape[along] for x in given))
    if any(replaced(x.shape, along, 0) != replaced(shape, along, 0) for x in given):
        raise ValueError(f"Shapes {[x.shape for x in given]} differ beside axis {along}.")
    dtype = jnp.result_type(*(x.dtype for x in given))
    given = [Array(x.block.astype(dtype), x.layout, x.world) for x in given]
    first = max(given, key=lambda x: (x.split is not None, x.nbytes))
    if first.split is None:
        block = jnp.concatenate([x.block for x in given], along)
        return Array(block, ArrayLayout(shape), first.world)
    if first.split != along:
        parts = [laid(x, ArrayLayout(x.shape, first.split, first.counts)) for x in given]
        block = jnp.concatenate([x.block for x in parts], along)
        return Array(block, ArrayLayout(shape, first.split, first.counts), first.world)
    return _behind(given, shape, along)


def _behind(given: list[Array], shape: tuple[int, ...], axis: int) -> Array:
    """Arrays one after another along the split: each moves to its place in the result."""
    at = given[0].world
    layout = ArrayLayout(shape).over(axis, at.nodes)
    begin, parts = 0, []
    for x in given:
        end = begin + x.shape[axis]
        counts = counts_within(layout, begin, end)
        parts.append(laid(resplit(x, axis), ArrayLayout(x.shape, axis, counts)).block)
        begin = end
    return Array(jnp.concatenate(parts, axis), layout, at)


def stack(arrays: Sequence[Any], axis: int = 0) -> Array:
    """Arrays side by side along a new axis. Nothing moves if all have one layout."""
    return concat([expand_dims(x, axis=axis) for x in arrays], axis=axis)
