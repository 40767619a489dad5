"""Linear algebra: norms, and factors of tall matrices.

A tall matrix is split along its rows. Its QR factors come from those of the blocks (TSQR; Demmel,
Grigori, Hoemmen and Langou 2012, SIAM Journal on Scientific Computing 34): each node sends one
small triangular matrix, and no row moves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from ._array import Array, as_array
from ._elementwise import abs as absolute
from ._elementwise import astype, sqrt, square
from ._layout import Layout
from ._move import resplit
from ._products import matmul, matrix_transpose, tensordot, vecdot
from ._reduce import REDUCTIONS, Axis
from ._scan import tril, triu

__all__ = [
    "QR", "SVD", "lstsq", "matmul", "matrix_transpose", "norm", "qr", "svd", "svdvals", "tensordot",
    "trace", "tril", "triu", "vecdot", "vector_norm",
]  # fmt: skip


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


class QR(NamedTuple):
    """Factors of a matrix: ``Q R``, with orthonormal columns of Q and R upper triangular."""

    Q: Array
    R: Array


def qr(x: Any) -> QR:
    """The QR factors of a matrix of at least as many rows as columns, ``[m, n]``, m >= n.

    Q is split as the rows, R whole on each node; the diagonal of R is not negative, so that the
    factors do not depend on the number of nodes. Moves n² numbers from each node.

    Raises:
        ValueError: the matrix is wider than tall.
    """
    x = as_array(x)
    if x.ndim != 2 or x.shape[0] < x.shape[1]:
        raise ValueError(f"qr takes [m, n] with m >= n, the shape is {x.shape}. Transpose it.")
    if x.split == 1:
        x = resplit(x, 0)
    q, r = jnp.linalg.qr(x.block)
    if x.split == 0:
        counts = tuple(min(count, x.shape[1]) for count in x.counts)
        second, r = jnp.linalg.qr(x.world.gather(r, counts))
        begin = sum(counts[: x.world.node])
        q = q @ second[begin : begin + counts[x.world.node]]
    sign = jnp.where(jnp.diagonal(r).real < 0, -1, 1).astype(r.dtype)
    return QR(
        Array(q * sign, x.layout, x.world), Array(sign[:, None] * r, Layout(r.shape), x.world)
    )


class SVD(NamedTuple):
    """Factors of a matrix: ``U diag(S) Vh``."""

    U: Array
    S: Array
    Vh: Array


def svd(x: Any) -> SVD:
    """The singular value factors of a matrix, the small ones only: U ``[m, k]``, k = min(m, n).

    By `qr` and the factors of R. Moves k² numbers from each node.
    """
    x = as_array(x)
    if x.shape[0] < x.shape[1]:
        u, s, vh = svd(x.T.conj())
        return SVD(vh.T.conj(), s, u.T.conj())
    q, r = qr(x)
    u, s, vh = jnp.linalg.svd(r.block, full_matrices=False)
    small = (Array(one, Layout(one.shape), q.world) for one in (s, vh))
    return SVD(Array(q.block @ u, q.layout, q.world), *small)


def svdvals(x: Any) -> Array:
    """The singular values, the largest first; see `svd`."""
    return svd(x).S


def lstsq(a: Any, b: Any) -> Array:
    """The x that makes ``|a x - b|`` smallest, for a tall matrix of full rank, by its QR factors.

    Args:
        a: ``[m, n]``, m >= n.
        b: ``[m]`` or ``[m, k]``.

    Moves n² numbers from each node, and one reduction of x.
    """
    q, r = qr(a)
    right = matmul(q.T.conj(), b)
    solved = jnp.linalg.solve(r.block, resplit(right, None).block)
    return Array(solved, Layout(solved.shape), q.world)
