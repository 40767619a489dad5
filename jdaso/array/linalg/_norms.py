"""Norms of vectors and matrices."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from .._array import Array, as_array
from .._elementwise import abs as absolute
from .._elementwise import astype, sqrt, square
from .._reduce import REDUCTIONS, Axis
from .._shape import expand_dims, moveaxis
from ._tall import svdvals

INF = float("inf")


def vector_norm(x: Any, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:  # noqa: A002
    """The norm ``(sum |x|^ord)^(1/ord)`` over axes (None: all); for inf the largest ``|x|``.

    Moves one reduction of the result if the split is among the axes.
    """
    x = as_array(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = astype(x, float)
    size = absolute(x)
    if ord in (INF, -INF):
        pick = REDUCTIONS["max" if ord > 0 else "min"]
        return pick(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        return REDUCTIONS["sum"](size != 0, axis=axis, keepdims=keepdims, dtype=size.dtype)
    if ord == 2:
        return sqrt(REDUCTIONS["sum"](square(size), axis=axis, keepdims=keepdims))
    return REDUCTIONS["sum"](size**ord, axis=axis, keepdims=keepdims) ** (1 / ord)


def matrix_norm(x: Any, *, keepdims: bool = False, ord: Any = "fro") -> Array:  # noqa: A002
    """The norm of matrices over the last two axes.

    Args:
        x: the matrices.
        keepdims: whether both axes stay, with length 1.
        ord: fro: the root of the sum of squares; nuc: the sum of the singular values; 2, -2: the
            largest and the smallest of them; 1, -1, inf, -inf: the largest and the smallest sum of
            a column's or row's absolute values.

    Moves: for fro, 1 and inf reductions of the result or of a row; else what `svdvals` moves.

    Raises:
        ValueError: there is no such norm, or there are fewer than two axes.
    """
    x = as_array(x)
    if x.ndim < 2 or ord not in ("fro", "nuc", 1, -1, 2, -2, INF, -INF):
        raise ValueError(
            f"matrix_norm takes two axes or more and ord fro, nuc, 1, -1, 2, -2, inf or -inf; got "
            f"the shape {x.shape} and {ord!r}."
        )
    rows, columns = x.ndim - 2, x.ndim - 1
    if ord == "fro":
        return vector_norm(x, axis=(rows, columns), keepdims=keepdims)
    if ord in (1, -1, INF, -INF):
        along, other = (rows, columns) if ord in (1, -1) else (columns, rows)
        sums = vector_norm(x, axis=along, keepdims=True, ord=1)
        found = REDUCTIONS["max" if ord > 0 else "min"](sums, axis=other, keepdims=True)
        return found if keepdims else REDUCTIONS["sum"](found, axis=(rows, columns))
    values = svdvals(x)
    name = {"nuc": "sum", 2: "max", -2: "min"}[ord]
    found = REDUCTIONS[name](values, axis=-1)
    return expand_dims(expand_dims(found, axis=-1), axis=-1) if keepdims else found


def norm(x: Any, ord: Any = None, *, axis: Axis = None, keepdims: bool = False) -> Array:  # noqa: A002
    """The norm of vectors or matrices, like `numpy.linalg.norm`.

    Args:
        x: the array.
        ord: as in `vector_norm` for one axis, in `matrix_norm` for two; None: the root of the sum
            of squares over all axes.
        axis: one axis or two; None: all.
        keepdims: whether the axes stay, with length 1.

    Moves what `vector_norm` or `matrix_norm` moves.
    """
    x = as_array(x)
    axes = range(x.ndim) if axis is None else axis if hasattr(axis, "__len__") else (axis,)
    axes = tuple(axes)  # pyright: ignore[reportArgumentType]
    if ord is None or len(axes) == 1:
        return vector_norm(x, axis=axis, keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        raise ValueError(f"ord={ord!r} is a norm of one axis or of two, got {len(axes)}.")
    found = matrix_norm(moveaxis(x, axes, (-2, -1)), keepdims=keepdims, ord=ord)
    return moveaxis(found, (-2, -1), axes) if keepdims else found
