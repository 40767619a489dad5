"""Values of matrices that every node gets whole; of stacks each node takes some.

One matrix that is split costs memory for n² numbers, and all of the work, on every node: these
functions are for matrices that one node can hold. For a few eigenvalues of larger ones there is
`lanczos`, for systems `solve`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._array import Array
from .._elementwise import where
from .._products import matmul
from .._reduce import REDUCTIONS
from .._shape import expand_dims
from ._stacks import of_matrices, square, square_or_not
from ._tall import svd, svdvals


class Eigen(NamedTuple):
    """Eigenvalues (ascending for `eigh`), and eigenvectors, the columns of a matrix."""

    eigenvalues: Array
    eigenvectors: Array


class Determinant(NamedTuple):
    """The sign of a determinant, and the logarithm of its absolute value."""

    sign: Array
    logabsdet: Array


def det(x: Any) -> Array:
    """The determinants of square matrices. Gathers a split one: n² numbers to each node."""
    return of_matrices(jnp.linalg.det, square(x))


def slogdet(x: Any) -> Determinant:
    """The signs and the logarithms of determinants; moves like `det`."""
    return Determinant(*of_matrices(lambda block: tuple(jnp.linalg.slogdet(block)), square(x)))


def eigh(x: Any) -> Eigen:
    """The eigenvalues and vectors of self-adjoint matrices.

    Moves a matrix that is split, n² numbers, to each node, which all compute the same. The lower
    triangle is read.
    """

    def function(block: jax.Array) -> tuple[jax.Array, jax.Array]:
        return tuple(jnp.linalg.eigh(block, UPLO="L", symmetrize_input=False))

    return Eigen(*of_matrices(function, square(x)))


def eigvalsh(x: Any) -> Array:
    """The eigenvalues of self-adjoint matrices, ascending; see `eigh`."""
    return eigh(x).eigenvalues


def eig(x: Any) -> Eigen:
    """The eigenvalues and right eigenvectors of square matrices, complex; moves like `eigh`."""
    return Eigen(*of_matrices(lambda block: tuple(jnp.linalg.eig(block)), square(x)))


def eigvals(x: Any) -> Array:
    """The eigenvalues of square matrices, complex, in no order; moves like `eigh`."""
    return of_matrices(jnp.linalg.eigvals, square(x))


def matrix_rank(x: Any, *, rtol: Any = None) -> Array:
    """The numbers of singular values that are above a share of the largest one.

    Args:
        x: the matrices.
        rtol: the share; None: ``max(m, n)`` times the precision.

    Moves what `svdvals` moves.
    """
    x = square_or_not(x)
    values = svdvals(x)
    return REDUCTIONS["sum"](values > _bound(values, x, rtol), axis=-1, dtype=int)


def _bound(values: Array, x: Any, rtol: Any) -> Array:
    if rtol is None:
        rtol = max(x.shape[-2:]) * float(jnp.finfo(values.dtype).eps)
    elif jnp.ndim(rtol):
        rtol = expand_dims(rtol, axis=-1)
    if not values.shape[-1]:
        return values
    return REDUCTIONS["max"](values, axis=-1, keepdims=True) * rtol


def pinv(x: Any, *, rtol: Any = None) -> Array:
    """The pseudo-inverses, by the singular values above a share of the largest one.

    Args:
        x: the matrices.
        rtol: the share; None: ``max(m, n)`` times the precision.

    Moves what `svd` without full matrices moves. For a tall matrix split along its rows, the result
    is split along its columns.
    """
    x = square_or_not(x)
    u, s, vh = svd(x, full_matrices=False)
    kept = s > _bound(s, x, rtol)
    inverse = where(kept, 1 / where(kept, s, 1), 0)
    return matmul(vh.mT.conj() * expand_dims(inverse, axis=-2), u.mT.conj())
