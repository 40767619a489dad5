"""Norms, and sums of diagonals."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from .._array import Array, as_array
from .._elementwise import abs as absolute
from .._elementwise import astype, sqrt, square
from .._reduce import REDUCTIONS, Axis
from .._scan import tril, triu


def vector_norm(x: Any, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:  # noqa: A002
    """The norm ``(sum |x|^ord)^(1/ord)`` over axes (None: all); for inf the largest ``|x|``.

    Moves one reduction of the result if the split is among the axes.
    """
    x = as_array(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = astype(x, float)
    size = absolute(x)
    if ord in (float("inf"), float("-inf")):
        pick = REDUCTIONS["max" if ord > 0 else "min"]
        return pick(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        return REDUCTIONS["sum"](size != 0, axis=axis, keepdims=keepdims, dtype=size.dtype)
    if ord == 2:
        return sqrt(REDUCTIONS["sum"](square(size), axis=axis, keepdims=keepdims))
    return REDUCTIONS["sum"](size**ord, axis=axis, keepdims=keepdims) ** (1 / ord)


def norm(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The root of the sum of squares: Euclid's norm of vectors, Frobenius's of matrices."""
    return vector_norm(x, axis=axis, keepdims=keepdims)


def trace(x: Any, *, offset: int = 0) -> Array:
    """The sum of a diagonal of matrices. Moves one reduction if rows or columns are split."""
    x = as_array(x)
    both = tril(triu(x, k=offset), k=offset)
    return REDUCTIONS["sum"](both, axis=(x.ndim - 2, x.ndim - 1))
