"""Matrices from their diagonals, and the reverse."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import jax.numpy as jnp

from ._array import Array, as_array, method
from ._layout import ArrayLayout
from ._pad import pad
from ._reduce import REDUCTIONS
from ._shape import moveaxis
from ._varied import beside
from .linalg._diagonals import diagonal as diagonal_of_matrices


@method("diagonal")
def diagonal(x: Any, offset: int = 0, axis1: SupportsIndex = 0, axis2: SupportsIndex = 1) -> Array:
    """The elements at ``[i, i + offset]`` of two axes, as the last axis; they stay in place."""
    return diagonal_of_matrices(moveaxis(x, (axis1, axis2), (-2, -1)), offset=offset)


def trace(
    x: Any, offset: int = 0, axis1: SupportsIndex = 0, axis2: SupportsIndex = 1, dtype: Any = None
) -> Array:
    """The sum of a diagonal, like `numpy.trace`. Moves one reduction if its axes are split.

    `linalg.trace` takes the last two axes instead, as the array API standard has it.
    """
    x = as_array(x)
    if x.ndim < 2:
        raise ValueError(f"trace takes an array of two axes or more, the shape is {x.shape}.")
    return REDUCTIONS["sum"](diagonal(x, offset, axis1, axis2), axis=-1, dtype=dtype)


def diag(x: Any, k: int = 0) -> Array:
    """The k-th diagonal of a matrix, or the matrix with this k-th diagonal. Nothing moves.

    Args:
        x: ``[n, m]``, or ``[n]``: the result is ``[n + |k|, n + |k|]``, split along its rows if the
            elements are split.
        k: the columns by which the diagonal is to the right of the main one.

    Raises:
        ValueError: there are more than two axes, or none.
    """
    x, k = as_array(x), operator.index(k)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ValueError(f"diag takes a matrix or its diagonal, the shape is {x.shape}.")
    columns, rows = x.size + abs(k), jnp.arange(len(x.block))
    first = x.layout.begins[x.world.node] if x.counts else 0
    block = jnp.zeros((len(x.block), columns), x.dtype)
    block = block.at[rows, rows + first + max(k, 0)].set(x.block)
    block = block if block.size else beside(block, x.block)
    layout = ArrayLayout((x.size, columns), x.split, x.counts)
    more = (0, k) if k > 0 else (-k, 0)
    return pad(Array(block, layout, x.world), [more, (0, 0)])
