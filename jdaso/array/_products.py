"""Products of matrices, for each combination of splits.

=========  =========  ==================================================  ========
first      second     work and movement                                   result
=========  =========  ==================================================  ========
whole      whole      each node all of it; nothing moves                  whole
rows       whole      each node its rows; nothing moves                   rows
whole      columns    each node its columns; nothing moves                columns
columns    rows       each node its part of the sum; one reduction        whole
columns    whole      the same: the second is cut                         whole
whole      rows       the same: the first is cut                          whole
rows       rows       the second's blocks pass from node to node          rows
rows       columns    the second's blocks pass from node to node          rows
columns    columns    the first's blocks pass from node to node           columns
=========  =========  ==================================================  ========

A block is passed on while the product with it is computed, so that a node holds rows of two at a
time; an operand of at most 8 MB is gathered instead, which moves as many bytes. A reduction moves
2 n (P - 1) / P bytes of the result, passing on n (P - 1) / P of the operand that moves. Products of
more than 8 MB are computed some rows at a time, and each part is one reduction; in a program that
is traced all rows are one part.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsIndex, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._mpi.arrays import computed_as
from ._array import Array, as_array, method, of_one_world
from ._in_place import add_product, pieces_of, put, written
from ._layout import ArrayLayout, axis_of
from ._move import cut, laid, resplit
from ._passing import passing, whole_if_small
from ._reduce import REDUCTIONS
from ._shape import expand_dims, permute_dims, squeeze
from ._varied import varied

T = TypeVar("T")

Pairs = SupportsIndex | Sequence[SupportsIndex | Sequence[SupportsIndex]]
"""A number of axes, or the axes of both operands, one or several of each."""

ROWS, COLUMNS = -2, -1


@method("matmul")
def matmul(x1: Any, x2: Any) -> Array:
    """The product of matrices, of stacks of them, and of vectors.

    Moves nothing if the first is split by rows, or the second by columns, and the other one is
    whole; over a split inner axis one reduction of the result; else one operand to all nodes. The
    table of this module has each case.

    Raises:
        ValueError: an operand has no axes, or the inner sizes differ.
    """
    a, b = of_one_world(x1, x2)
    if not a.ndim or not b.ndim:
        raise ValueError(f"matmul needs axes, the shapes are {a.shape} and {b.shape}. Take x * y.")
    if a.ndim == 1:
        return squeeze(matmul(expand_dims(a, axis=0), b), -2 if b.ndim > 1 else -1)
    if b.ndim == 1:
        return squeeze(matmul(a, expand_dims(b, axis=1)), -1)
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul of {a.shape} and {b.shape}: the inner sizes differ.")
    if max(a.ndim, b.ndim) > 2:
        return _stacks(a, b)
    if (_split(a), _split(b)) == (COLUMNS, COLUMNS):
        a = whole_if_small(a)
    elif _split(a) == ROWS:
        b = whole_if_small(b)
    return _PRODUCTS[_split(a), _split(b)](a, b)


def _split(x: Array) -> int | None:
    return None if x.split is None else x.split - x.ndim


def _shape(a: Array, b: Array) -> tuple[int, int]:
    return a.shape[0], b.shape[1]


def _local(split: int | None) -> Callable[[Array, Array], Array]:
    def product(a: Array, b: Array) -> Array:
        counts = () if split is None else a.counts if split == 0 else b.counts
        left = varied(a.block, a.world) if split == 1 else a.block
        right = varied(b.block, b.world) if split == 0 else b.block
        return Array(left @ right, ArrayLayout(_shape(a, b), split, counts), a.world)

    return product


def _summed(a: Array, b: Array) -> Array:
    """Each node's part of the sum over the inner axis; some rows at a time."""
    counts = a.counts or b.counts
    left = laid(a, ArrayLayout(a.shape, 1, counts)).block
    right = laid(b, ArrayLayout(b.shape, 0, counts)).block
    layout, reduce = ArrayLayout(_shape(a, b)), a.world.reduce
    itemsize, width = jnp.result_type(left, right).itemsize, max(*counts, b.shape[1])
    rows = pieces_of(left, right, rows=a.shape[0], width=width, itemsize=itemsize)
    if len(rows) == 1:
        return Array(reduce(left @ right, "sum"), layout, a.world)
    total = jnp.zeros(layout.shape, jnp.result_type(left, right))
    for begin, part in _ahead((each.start, left[each] @ right) for each in rows):
        total = written(put, total, reduce(part, "sum"), begin, 0)
    return Array(total, layout, a.world)


def _ahead(parts: Iterator[T]) -> Iterator[T]:
    """Yields what an iterator yields; JAX computes the next one meanwhile."""
    this = next(parts)
    for following in parts:
        yield this
        this = following
    yield this


def _passing_rows(a: Array, b: Array) -> Array:
    """Rows of both: a node's rows of the result need all rows of the second."""
    total = _zeros(a.block, b.block, (a.block.shape[0], b.shape[1]))
    for owner, begin, rows in passing(b):
        inner = b.layout.begins[owner] + begin
        total = add_product(total, a.block, rows, inner=inner)
    return _sum(a, b, total, 0)


def _passing_columns(a: Array, b: Array) -> Array:
    """Rows of the first, columns of the second: columns of the result come in one by one."""
    total = _zeros(a.block, b.block, (a.block.shape[0], b.shape[1]))
    for owner, begin, rows in passing(b):
        column = b.layout.begins[owner]
        total = add_product(total, a.block, rows, inner=begin, column=column)
    return _sum(a, b, total, 0)


def _passing_first(a: Array, b: Array) -> Array:
    """Columns of both: a node's columns of the result need all columns of the first."""
    total = _zeros(a.block, b.block, (a.shape[0], b.block.shape[1]))
    for owner, begin, rows in passing(a):
        factor = cut(b.block, 0, a.layout.slice_of(owner))
        total = add_product(total, rows, factor, row=begin)
    return _sum(a, b, total, 1)


def _zeros(a: jax.Array, b: jax.Array, shape: Sequence[int]) -> jax.Array:
    """The sum of no products: of narrow floats in float32, since such a sum would stop growing."""
    dtype = jnp.result_type(a, b)
    return jnp.zeros(shape, computed_as(dtype) if jnp.issubdtype(dtype, jnp.floating) else dtype)


def _sum(a: Array, b: Array, total: jax.Array, split: int) -> Array:
    """The product, split like its factor."""
    found = total.astype(jnp.result_type(a.dtype, b.dtype))
    return Array(found, ArrayLayout(_shape(a, b), split, (a, b)[split].counts), a.world)


_PRODUCTS: dict[tuple[int | None, int | None], Callable[[Array, Array], Array]] = {
    (None, None): _local(None),
    (ROWS, None): _local(0),
    (None, COLUMNS): _local(1),
    (COLUMNS, ROWS): _summed,
    (COLUMNS, None): _summed,
    (None, ROWS): _summed,
    (ROWS, ROWS): _passing_rows,
    (ROWS, COLUMNS): _passing_columns,
    (COLUMNS, COLUMNS): _passing_first,
}


def _stacks(a: Array, b: Array) -> Array:
    """Stacks of matrices: stacks that are split stay so; else the matrices are gathered first."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*lead, a.shape[-2], b.shape[-1])
    split = [
        x for x in (a, b) if x.split is not None and x.split < x.ndim - 2 and x.ndim == len(shape)
    ]
    if not split or split[0].shape[split[0].split or 0] != shape[split[0].split or 0]:
        return Array(resplit(a, None).block @ resplit(b, None).block, ArrayLayout(shape), a.world)
    axis, counts = split[0].split or 0, split[0].counts
    parts = []
    for x in (a, b):
        along = axis - len(shape) + x.ndim
        if along < 0 or (x.shape[along] == 1 and shape[axis] != 1):
            parts.append(varied(resplit(x, None).block, x.world))
        else:
            parts.append(laid(x, ArrayLayout(x.shape, along, counts)).block)
    return Array(parts[0] @ parts[1], ArrayLayout(shape, axis, counts), a.world)


@method("matrix_transpose")
def matrix_transpose(x: Any) -> Array:
    """The array with its last two axes swapped. Nothing moves."""
    return as_array(x).mT


@method("vecdot")
def vecdot(x1: Any, x2: Any, *, axis: int = -1) -> Array:
    """Sums of ``conj(x1) x2`` along an axis. Moves one reduction if the split is that axis."""
    product = as_array(x1).conj() * x2
    return REDUCTIONS["sum"](product, axis=axis, dtype=product.dtype)


def tensordot(x1: Any, x2: Any, *, axes: Pairs = 2) -> Array:
    """Sums of products over pairs of axes: a `matmul` of both as matrices, which moves the same.

    Over all axes of both it moves what their product moves, and one number.

    Raises:
        ValueError: an operand has no such axis, or the axes of a pair differ in length.
    """
    a, b = of_one_world(x1, x2)
    inner = [
        [axis_of(k, x.ndim) for k in each] for x, each in zip((a, b), _pairs(axes), strict=True)
    ]
    outer = (
        [k for k in range(a.ndim) if k not in inner[0]],
        [k for k in range(b.ndim) if k not in inner[1]],
    )
    sums = [[x.shape[k] for k in axes] for x, axes in zip((a, b), inner, strict=True)]
    if sums[0] != sums[1]:
        raise ValueError(f"tensordot of {a.shape}, {b.shape} over axes={axes}: these differ.")
    if not outer[0] and not outer[1]:  # element by element: as matrices one node would have all
        places = dict(zip(inner[0], inner[1], strict=True))
        kind = jnp.result_type(a.dtype, b.dtype)
        wide = jnp.promote_types(kind, jnp.float32) if jnp.issubdtype(kind, jnp.inexact) else kind
        b = permute_dims(b, [places[k] for k in range(a.ndim)])
        return REDUCTIONS["sum"](a.astype(wide) * b.astype(wide), dtype=wide).astype(kind)
    size = math.prod(sums[0])
    rows, columns = [a.shape[k] for k in outer[0]], [b.shape[k] for k in outer[1]]
    left = permute_dims(a, [*outer[0], *inner[0]]).reshape((math.prod(rows), size))
    right = permute_dims(b, [*inner[1], *outer[1]]).reshape((size, math.prod(columns)))
    return matmul(left, right).reshape(rows + columns)


def _pairs(axes: Pairs) -> list[Sequence[SupportsIndex]]:
    """The axes of both operands; a number: the last ones of the first, the first of the second."""
    if not isinstance(axes, Sequence):
        count = operator.index(axes)
        return [range(-count, 0), range(count)]
    return [k if isinstance(k, Sequence) else (k,) for k in axes]
