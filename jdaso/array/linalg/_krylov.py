"""Eigenvectors of large symmetric matrices by products with them (block Lanczos).

The basis is split along its rows, like the matrix, and kept fully orthogonal. A step moves the new
vectors to all nodes, for the product, and five small operations. The method: Golub and Underwood
(1977), The block Lanczos method for computing eigenvalues.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import random
from .._array import Array
from .._layout import ArrayLayout
from .._move import laid
from .._reduce import agreed
from .._world import ALONE, using
from ._tall import qr

Apply = Callable[[Array], Array]
"""A product of a symmetric matrix with vectors ``[n, b]`` in the layout of its rows."""


class _Basis(NamedTuple):
    """Orthonormal vectors ``[n, most]``, 0 beyond `size`; the matrix in them; the remainder."""

    vectors: jax.Array
    size: int
    among: np.ndarray
    rest: np.ndarray


@jax.jit
def _shares(vectors: jax.Array, new: jax.Array) -> jax.Array:
    return vectors.T.conj() @ new


@jax.jit
def _without(vectors: jax.Array, new: jax.Array, shares: jax.Array) -> jax.Array:
    return new - vectors @ shares


def _orthogonal(vectors: jax.Array, new: Array) -> tuple[Array, np.ndarray]:
    """New vectors without their part in the basis, and that part, ``[most, b]``."""
    at = ALONE if new.split is None else new.world
    shares = at.reduce(_shares(vectors, new.block), "sum")
    left = _without(vectors, new.block, shares)
    return Array(left, new.layout, new.world), np.asarray(shares)


def grown(apply: Apply, begin: Array, most: int) -> Iterator[_Basis]:
    """Yields bases of ``b, A b, A² b, ...``, one block of vectors larger each."""
    width = begin.shape[1]
    new, _ = qr(begin)
    vectors = jnp.zeros((new.block.shape[0], most), new.dtype)
    among = np.zeros((most, most), new.dtype)
    for size in range(0, most - width + 1, width):
        vectors = jax.lax.dynamic_update_slice(vectors, new.block, (0, size))
        left, first = _orthogonal(vectors, apply(new))
        left, second = _orthogonal(vectors, left)
        among[:, size : size + width] = first + second
        new, r = qr(left)
        # Vectors that vanished hold arbitrary values at this point; they are orthogonalized, too.
        new, again = qr(_orthogonal(vectors, new)[0])
        rest = np.asarray(again.block) @ np.asarray(r.block)
        if width == 1 and abs(again.block[0, 0]) < 0.5:  # the basis holds all products already
            new = drawn(size, begin, 1)
            for _ in range(2):
                new, _ = qr(_orthogonal(vectors, new)[0])
        yield _Basis(vectors, size + width, among, rest)


def largest(
    apply: Apply, begin: Array, count: int, *, tol: float, most: int
) -> tuple[Array, Array]:
    """The largest eigenvalues of a symmetric matrix, descending, and their vectors ``[n, count]``.

    Args:
        apply: the product with the matrix.
        begin: vectors to begin with, at least `count` of them, so that repeated eigenvalues are
            found as often as they occur.
        count: the number of eigenvalues.
        tol: the length of the remainder, as a share of the largest eigenvalue, at which to stop.
        most: the maximum number of vectors of a basis.
    """
    at = ALONE if begin.split is None else begin.world
    for basis in grown(apply, begin, most):
        inner = basis.among[: basis.size, : basis.size]
        values, vectors = np.linalg.eigh(inner, UPLO="U")  # entries below were not yet known
        values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count]
        left = np.linalg.norm(basis.rest @ vectors[basis.size - begin.shape[1] :], axis=0)
        # All nodes stop at the same step, even where their processors differ in the last bit.
        worst = jnp.asarray(left.max() / max(np.abs(values).max(), np.finfo(float).tiny))
        if float(at.reduce(worst, "max")) <= tol:
            break
    else:
        warnings.warn(
            f"Lanczos did not converge: {most} vectors leave {float(worst):.1g} of the largest "
            f"eigenvalue, not {tol:.1g}. Raise tol.",
            stacklevel=3,
        )
    (chosen,) = agreed(at, jnp.asarray(vectors, basis.vectors.dtype))
    found = basis.vectors[:, : basis.size] @ chosen
    layout = ArrayLayout((begin.shape[0], count), begin.split, begin.counts)
    values = jnp.asarray(values.copy())
    return Array(values, ArrayLayout(values.shape), begin.world), Array(found, layout, begin.world)


def drawn(key: Any, like: Array, width: int) -> Array:
    """Returns random vectors ``[n, width]``, in the layout of the rows of a matrix."""
    with using(like.world):
        whole = random.normal(key, (like.shape[0], width), dtype=like.block.real.dtype)
    vectors = Array(whole.block.astype(like.dtype), whole.layout, like.world)
    return laid(vectors, ArrayLayout(whole.shape, like.split, like.counts))
