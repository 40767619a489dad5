"""Solutions and factors of large matrices by products with them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import random
from .._array import Array, as_array, of_one_world
from .._layout import ArrayLayout
from .._move import laid, resplit
from .._products import matmul
from .._reduce import agreed
from .._shape import permute_dims
from .._world import ALONE, using
from ._krylov import drawn, grown
from ._stacks import inexact, square, square_or_not
from ._tall import SVD, qr


def cg(a: Any, b: Any, x0: Any = None, *, tol: float = 1e-5, maxiter: int | None = None) -> Array:
    """The x of ``a x = b`` by conjugate gradients, ``[n]``, on all nodes.

    Args:
        a: a self-adjoint positive definite matrix ``[n, n]``.
        b: ``[n]``.
        x0: where to begin; None: 0.
        tol: the length of ``b - a x`` at which to stop, as a share of b's.
        maxiter: the maximum number of steps; None: 10 n.

    A step moves the product, n numbers, to all nodes, and one number.

    Reference: Hestenes and Stiefel (1952), Journal of Research of the NBS 49.
    """
    a, b = (inexact(x) for x in of_one_world(square(a), b))
    right = resplit(b, None).block
    at = ALONE if a.split is None else a.world

    def product(vector: Any) -> Any:
        whole = Array(vector, ArrayLayout(vector.shape), a.world)
        return resplit(matmul(a, whole), None).block

    found = jnp.zeros_like(right) if x0 is None else resplit(as_array(x0), None).block
    rest = right - product(found)
    along, length = rest, jnp.vdot(rest, rest).real
    goal = (tol * float(at.reduce(jnp.linalg.norm(right), "max"))) ** 2
    for _ in range(10 * len(right) if maxiter is None else maxiter):
        # All nodes stop at the same step, even where their processors differ in the last bit.
        if float(at.reduce(length, "max")) <= goal:
            break
        image = product(along)
        step = length / jnp.vdot(along, image).real
        found, rest = found + step * along, rest - step * image
        before, length = length, jnp.vdot(rest, rest).real
        along = rest + length / before * along
    return Array(found, ArrayLayout(found.shape), a.world)


def lanczos(a: Any, m: int, v0: Any = None, *, key: Any = 0) -> tuple[Array, Array]:
    """A basis V of ``v, a v, ..., aᵐ⁻¹ v`` and the tridiagonal T, with ``a V ≈ V T``.

    The eigenvalues of T approximate the outermost ones of a.

    Args:
        a: a self-adjoint matrix ``[n, n]``.
        m: the number of vectors.
        v0: the first vector; None: a random one.
        key: for the random vector.

    Returns:
        V ``[n, m]`` of orthonormal columns, split like a's rows, and T ``[m, m]``, on all nodes.

    A step moves the new vector, n numbers, to all nodes, and five small operations.
    """
    a = inexact(square(a))
    a = resplit(a, 0) if a.split == 1 else a
    if v0 is None:
        begin = drawn(key, a, 1)
    else:
        column = as_array(v0).reshape((-1, 1))
        a = a.astype(jnp.promote_types(a.dtype, column.dtype))
        column = column.astype(a.dtype)
        begin = laid(column, ArrayLayout(column.shape, a.split, a.counts))
    if not 1 <= m <= a.shape[0]:
        raise ValueError(f"lanczos finds 1 to {a.shape[0]} vectors of {a.shape}, got m={m}.")
    *_, basis = grown(lambda vectors: matmul(a, resplit(vectors, None)), begin, m)
    upper = np.triu(np.tril(basis.among, 1))
    both = jnp.asarray(upper + np.triu(upper, 1).T.conj())
    layout = ArrayLayout((a.shape[0], m), a.split, a.counts)
    return Array(basis.vectors, layout, a.world), Array(both, ArrayLayout(both.shape), a.world)


def rsvd(x: Any, rank: int, *, oversamples: int = 10, iterations: int = 2, key: Any = 0) -> SVD:
    """The largest singular values and their vectors, approximately, by random projections.

    Args:
        x: a matrix ``[m, n]``.
        rank: the number of values.
        oversamples: the number of additional vectors that are projected.
        iterations: the number of times the projection is multiplied by ``x xᴴ``: more for values
            that decay slowly.
        key: for the random numbers.

    Returns:
        U ``[m, rank]``, split like the rows; S and Vh on all nodes.

    Each iteration moves one reduction of n (rank + oversamples) numbers, and the square of the
    latter from each node; so does the final step. No node holds more than its rows.

    Reference: Halko, Martinsson and Tropp (2011), SIAM Review 53.
    """
    x = inexact(square_or_not(x))
    x = resplit(x, 0) if x.split == 1 else x
    width = min(rank + oversamples, *x.shape)
    if x.ndim != 2 or not 1 <= rank <= min(x.shape):
        raise ValueError(f"rsvd of rank {rank} needs a matrix of that rank, got {x.shape}.")
    with using(x.world):
        test = random.normal(key, (x.shape[1], width), dtype=x.block.real.dtype)
    adjoint = permute_dims(x.conj(), (1, 0))
    q, _ = qr(matmul(x, test))
    for _ in range(iterations):
        back, _ = qr(matmul(adjoint, q))
        q, _ = qr(matmul(x, back))
    small = matmul(permute_dims(q.conj(), (1, 0)), x)
    u, s, vh = agreed(
        ALONE if x.split is None else x.world,
        *jnp.linalg.svd(resplit(small, None).block, full_matrices=False),
    )
    parts = (
        Array(one, ArrayLayout(one.shape), x.world) for one in (u[:, :rank], s[:rank], vh[:rank])
    )
    u, s, vh = parts
    return SVD(matmul(q, u), s, vh)
