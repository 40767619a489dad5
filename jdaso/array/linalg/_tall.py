"""Factors of tall matrices, split along their rows.

QR factors come from those of the blocks (TSQR; Demmel, Grigori, Hoemmen and Langou 2012, SIAM
Journal on Scientific Computing 34): each node sends one small triangular matrix, no row moves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._array import Array, of_one_world
from .._elementwise import elementwise
from .._layout import ArrayLayout
from .._move import resplit
from .._products import matmul
from .._reduce import REDUCTIONS, agreed, sharers
from .._world import ALONE
from ._stacks import of_matrices, square_or_not


class QR(NamedTuple):
    """Factors of a matrix: ``Q R``, with orthonormal columns of Q and R upper triangular."""

    Q: Array
    R: Array


def qr(x: Any, *, mode: str = "reduced") -> QR:
    """The QR factors of matrices ``[m, n]``: Q ``[m, k]``, R ``[k, n]``, k = min(m, n).

    Args:
        x: the matrices.
        mode: reduced; or complete: k = m, for which one matrix is gathered.

    Q is split like the rows, R is whole on each node; the diagonal of R is not negative, so that
    the factors do not depend on the number of nodes. Moves min(rows of the block, n) n numbers from
    each node. A wide matrix is factored by its first m columns: R moves in one more reduction.

    Of a stack each node factors some; only there may the diagonals have any sign.

    Raises:
        ValueError: there are fewer than two axes, or there is no such mode.
    """
    x = square_or_not(x)
    if mode not in ("reduced", "complete"):
        raise ValueError(f"mode must be reduced or complete, got {mode!r}.")
    if x.ndim > 2 or mode == "complete":
        return QR(*of_matrices(lambda block: tuple(jnp.linalg.qr(block, mode=mode)), x))
    rows, columns = x.shape
    x = resplit(x, 0) if x.split == 1 else x
    if rows < columns:
        q, _ = _tall(x.block[:, :rows], x)
        r = resplit(matmul(q.T.conj(), x), None)
        return QR(q, Array(jnp.triu(r.block), r.layout, r.world))
    return QR(*_tall(x.block, x))


def _tall(block: jax.Array, x: Array) -> tuple[Array, Array]:
    """Factors of a block's columns, of which there are at most as many as rows of all nodes."""
    columns = block.shape[1]
    q, r = jnp.linalg.qr(block)
    if x.split == 0:
        counts = tuple(min(count, columns) for count in x.counts)
        second, r = jnp.linalg.qr(x.world.gather(r, counts))
        begin = sum(counts[: x.world.node])
        q = q @ second[begin : begin + counts[x.world.node]]
    sign = jnp.where(jnp.diagonal(r).real < 0, -1, 1).astype(r.dtype)
    layout = ArrayLayout((x.shape[0], columns), x.split, x.counts)
    return Array(q * sign, layout, x.world), Array(sign[:, None] * r, ArrayLayout(r.shape), x.world)


def triangle(x: Array) -> jax.Array:
    """Returns R of a matrix that is split along its rows: ``RᴴR = xᴴx``, without forming that.

    Moves at most n² numbers from each node.
    """
    r = jnp.linalg.qr(x.block, mode="r")
    if x.split is None:
        return r
    counts = tuple(min(count, x.shape[1]) for count in x.counts)
    return jnp.linalg.qr(x.world.gather(r, counts), mode="r")


class SVD(NamedTuple):
    """Factors of a matrix: ``U diag(S) Vh``."""

    U: Array
    S: Array
    Vh: Array


def svd(x: Any, *, full_matrices: bool = True) -> SVD:
    """The singular value factors of matrices: U ``[m, k]``, S ``[k]``, Vh ``[k, n]``.

    Here k is the smaller of m and n.

    Args:
        x: the matrices.
        full_matrices: whether U is ``[m, m]`` and Vh ``[n, n]``: one matrix is gathered for that,
            and each node holds both factors. False for tall matrices that no node can hold.

    Without full matrices, by `qr` and the factors of R: moves k² numbers from each node, and no
    row; a wide matrix that is split along its columns is the transpose of a tall one. Of a stack
    each node factors some.
    """
    x = square_or_not(x)
    if x.ndim > 2 or full_matrices:
        return SVD(*of_matrices(lambda block: tuple(jnp.linalg.svd(block, full_matrices)), x))
    if x.shape[0] < x.shape[1]:
        u, s, vh = svd(x.T.conj(), full_matrices=False)
        return SVD(vh.T.conj(), s, u.T.conj())
    q, r = qr(x)
    # For equal singular values another processor may find other vectors.
    u, s, vh = agreed(
        ALONE if q.split is None else q.world, *jnp.linalg.svd(r.block, full_matrices=False)
    )
    small = (Array(one, ArrayLayout(one.shape), q.world) for one in (s, vh))
    return SVD(Array(q.block @ u, q.layout, q.world), *small)


def svdvals(x: Any) -> Array:
    """The singular values, the largest first; see `svd`."""
    return svd(x, full_matrices=False).S


class LeastSquares(NamedTuple):
    """The result of `lstsq`, in NumPy's order.

    Attributes:
        x: ``[n]`` or ``[n, k]``, whole on each node, as all of these.
        residuals: sums of squares ``|b - a x|²``, ``[1]`` or ``[k]``; ``[0]`` for a matrix of lower
            rank or without more rows than columns.
        rank: of the matrix, without axes.
        singular_values: of the matrix, ``[n]``.
    """

    x: Array
    residuals: Array
    rank: Array
    singular_values: Array


def lstsq(a: Any, b: Any, rcond: float | None = None) -> LeastSquares:
    """The x that makes ``|a x - b|`` smallest, for a tall matrix, by its QR factors.

    Of several such x the shortest one.

    Args:
        a: ``[m, n]``, m >= n.
        b: ``[m]`` or ``[m, k]``.
        rcond: singular values below this share of the largest count as 0; None: m times the
            rounding of the type.

    Moves n² numbers from each node, and reductions of x, of the singular values, and of the
    residuals.

    Raises:
        ValueError: the matrix is wider than tall, or b has another number of rows.
    """
    a, b = of_one_world(a, b)
    if a.ndim != 2 or a.shape[0] < a.shape[1]:
        raise ValueError(f"lstsq takes [m, n] with m >= n, the shape is {a.shape}.")
    if b.ndim not in (1, 2) or b.shape[0] != a.shape[0]:
        raise ValueError(f"lstsq of {a.shape} takes b of {a.shape[0]} rows, got {b.shape}.")
    q, r = qr(a)
    right = resplit(matmul(q.T.conj(), b), None).block
    cut = a.shape[0] * float(jnp.finfo(right.dtype).eps) if rcond is None else rcond
    x, _, rank, singular = jnp.linalg.lstsq(r.block, right, cut)
    # All nodes must take the same rank: it decides whether they go on to the residuals.
    x, rank, singular = agreed(sharers(b if a.split is None else a), x, rank, singular)
    solved = Array(x, ArrayLayout(x.shape), q.world)
    residuals = jnp.zeros((0,), singular.dtype)
    if int(rank) == a.shape[1] < a.shape[0]:
        distance = elementwise(_squares, b, matmul(a, solved))
        residuals = jnp.atleast_1d(resplit(REDUCTIONS["sum"](distance, axis=0), None).block)
    others = (Array(y, ArrayLayout(y.shape), q.world) for y in (residuals, rank, singular))
    return LeastSquares(solved, *others)


def _squares(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.abs(a - b) ** 2
