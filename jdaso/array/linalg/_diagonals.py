"""Diagonals, powers and vector products."""

from __future__ import annotations

import operator
from typing import Any

import jax.numpy as jnp

from .._array import Array, as_array, of_one_world
from .._covariance import outer as products_of_all
from .._create import eye
from .._elementwise import elementwise
from .._layout import ArrayLayout, overlap
from .._move import laid, resplit
from .._products import matmul
from .._reduce import REDUCTIONS
from .._shape import broadcast_to
from .._varied import beside
from .._world import using
from ._solve import inv
from ._stacks import square_or_not


def diagonal(x: Any, *, offset: int = 0) -> Array:
    """The elements at ``[i, i + offset]`` of the last two axes; they stay in place."""
    x, offset = square_or_not(x), operator.index(offset)
    rows, columns = x.shape[-2:]
    first, last = max(0, -offset), max(0, -offset, min(rows, columns - offset))
    shape = (*x.shape[:-2], last - first)
    if x.split is None or x.split < x.ndim - 2:
        found = jnp.diagonal(x.block, offset, -2, -1)
        return Array(found, ArrayLayout(shape, x.split, x.counts), x.world)
    across = x.split == x.ndim - 1
    valid = slice(first + offset * across, last + offset * across)
    parts = [overlap(x.layout.slice_of(k), valid) for k in range(x.world.nodes)]
    counts = tuple(part.stop - part.start for part in parts)
    begin = x.layout.begins[x.world.node]
    found = jnp.diagonal(x.block, offset - begin if across else offset + begin, -2, -1)
    found = found[..., : counts[x.world.node]]
    found = found if found.size else beside(found, x.block)
    return Array(found, ArrayLayout(shape, len(shape) - 1, counts), x.world)


def trace(x: Any, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sum of a diagonal of matrices. Moves one reduction if rows or columns are split."""
    return REDUCTIONS["sum"](diagonal(x, offset=offset), axis=-1, dtype=dtype)


def matrix_power(x: Any, n: int) -> Array:
    """The product of n equal matrices; n < 0: of -n inverses.

    Moves what `matmul` moves, log n times.

    Raises:
        ValueError: the matrices are not square.
    """
    x, n = as_array(x), operator.index(n)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"matrix_power takes square matrices, the shape is {x.shape}.")
    if n <= 0:
        if n:
            return matrix_power(inv(x), -n)
        with using(x.world):
            one = broadcast_to(eye(x.shape[-1], dtype=x.dtype), x.shape)
        return laid(one, x.layout)
    found = matrix_power(matmul(x, x), n // 2) if n > 1 else None
    return x if found is None else matmul(found, x) if n % 2 else found


def cross(x1: Any, x2: Any, *, axis: int = -1) -> Array:
    """The vector products of vectors of 3 along an axis. Moves nothing, unless that axis is split.

    Raises:
        ValueError: the axis does not have length 3.
    """
    a, b = (
        resplit(x, None) if x.split is not None and x.split - x.ndim == _back(axis, x) else x
        for x in of_one_world(x1, x2)
    )
    if a.shape[_back(axis, a)] != 3 or b.shape[_back(axis, b)] != 3:
        raise ValueError(
            f"cross takes vectors of length 3 along axis {axis}, got {a.shape}, {b.shape}."
        )
    return elementwise(lambda a, b: jnp.cross(a, b, axis=axis), a, b)


def _back(axis: int, x: Array) -> int:
    """An axis, counted from the end."""
    return axis if axis < 0 else axis - x.ndim


def outer(x1: Any, x2: Any) -> Array:
    """The products of all elements of a vector with all of another; see `jdaso.array.outer`.

    Raises:
        ValueError: an argument is not a vector.
    """
    a, b = as_array(x1), as_array(x2)
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError(f"linalg.outer takes vectors, got {a.shape} and {b.shape}.")
    return products_of_all(a, b)
