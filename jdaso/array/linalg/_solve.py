"""Square systems, block by block: no node holds the whole matrix.

A general matrix becomes ``Q R``, panel by panel of its columns: each panel loses its part in the
columns before it, twice, and then is factored as a tall matrix (TSQR). Both factors are split along
their rows. Then the rows of R pass to all nodes, the last block first, and each is solved for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .._array import Array, of_one_world
from .._layout import ArrayLayout
from .._move import laid, resplit
from .._products import matmul
from .._shape import permute_dims
from ._stacks import inexact, of_matrices, square
from ._tall import qr

PANEL = 256
"""Columns of a panel."""

solve_triangular = jax.scipy.linalg.solve_triangular


def _shared(x: Array, node: int, block: jax.Array) -> jax.Array:
    """The rows of one node, on all nodes."""
    counts = tuple(count if k == node else 0 for k, count in enumerate(x.counts))
    return x.world.gather(block if x.world.node == node else block[:0], counts)


def factors(x: Array) -> tuple[Array, jax.Array]:
    """Returns Q of a square matrix, split along its rows, and this node's rows of R."""
    size, mine = x.shape[0], x.layout.slice_of(x.world.node)
    q, rows = jnp.zeros_like(x.block), jnp.zeros_like(x.block)
    for begin in range(0, size, PANEL):
        panel = x.block[:, begin : begin + PANEL]
        above = jnp.zeros((size, panel.shape[1]), x.dtype)
        layout, scale = (
            ArrayLayout((size, panel.shape[1]), 0, x.counts),
            jnp.eye(panel.shape[1], dtype=x.dtype),
        )
        for _ in range(2):  # columns that are nearly equal are orthogonal after the second pass
            part = x.world.reduce(q.T.conj() @ panel, "sum")
            above = above + part @ scale
            new, r = qr(Array(panel - q @ part, layout, x.world))
            panel, scale = new.block, r.block @ scale
        above = jax.lax.dynamic_update_slice(above, scale, (begin, 0))
        q = jax.lax.dynamic_update_slice(q, panel, (0, begin))
        rows = jax.lax.dynamic_update_slice(rows, above[mine], (0, begin))
    return Array(q, x.layout, x.world), rows


def _back(x: Array, rows: jax.Array, right: jax.Array) -> jax.Array:
    """Solves ``R found = right``, of which each node has all rows of some columns, or of all."""
    found = jnp.zeros_like(right)
    for node, part in reversed([*_parts(x)]):
        block = _shared(x, node, rows)
        left = right[part] - block @ found
        found = found.at[part].set(solve_triangular(block[:, part], left))
    return found


def solve(a: Any, b: Any) -> Array:
    """The x of ``a x = b``, for square matrices; b ``[n]``, ``[n, k]``, or stacks of these.

    A matrix that is split: by blocks, see this module. A node holds 5 n² / P numbers and 256
    columns besides its part of b, and moves about 5 n² numbers in all. The result is whole on each
    node, or split along its columns if b is. A singular matrix gives inf, NaN or large numbers.
    A stack: each node solves some.

    Raises:
        ValueError: the matrices are not square, or b does not match.
    """
    a, b = of_one_world(square(a), b)
    if a.ndim > 2 or b.ndim > 2:
        return _stacks(a, b)
    if b.ndim not in (1, 2) or b.shape[0] != a.shape[0]:
        raise ValueError(f"solve of {a.shape} and {b.shape}: the rows differ. Give as many.")
    a = inexact(a)
    if a.split is None:
        found = jnp.linalg.solve(a.block, resplit(b, None).block)
        return Array(found, ArrayLayout(found.shape), a.world)
    a = resplit(a, 0)
    q, rows = factors(a)
    right = matmul(permute_dims(q.conj(), (1, 0)), b)
    right = right if right.split in (None, 1) else resplit(right, None)
    return Array(_back(a, rows, right.block), right.layout, right.world)


def _stacks(a: Array, b: Array) -> Array:
    """Stacks: each node solves those with its own matrices; otherwise all are gathered."""
    a = inexact(a)
    if a.split is None or a.split >= a.ndim - 2 or a.shape[:-2] != b.shape[:-2]:
        found = jnp.linalg.solve(resplit(a, None).block, resplit(b, None).block)
        return Array(found, ArrayLayout(found.shape), a.world)
    layout = ArrayLayout(b.shape, a.split, a.counts)
    return Array(jnp.linalg.solve(a.block, laid(b, layout).block), layout, a.world)


def inv(x: Any) -> Array:
    """The inverse of square matrices, by `solve`; split along its columns if the matrix is split.

    Each node moves about 5 n² numbers, and holds 4 n² / P; of a stack each node inverts some.
    """
    x = inexact(square(x))
    if x.ndim > 2 or x.split is None:
        return of_matrices(jnp.linalg.inv, x)
    x = resplit(x, 0)
    q, rows = factors(x)
    right = permute_dims(q.conj(), (1, 0))
    return Array(_back(x, rows, right.block), right.layout, x.world)


def cholesky(x: Any, *, upper: bool = False) -> Array:
    """The lower triangular L with ``x = L Lᴴ``, for a self-adjoint positive definite matrix.

    By blocks: a node holds its rows of L, and one block of rows of another node. Moves each node's
    rows of L, n² / 2 P numbers on average, to all. A matrix that is not positive definite gives
    NaN.

    Args:
        x: the matrices; their lower triangles are read.
        upper: whether to return Lᴴ.

    Raises:
        ValueError: the matrices are not square.
    """
    x = inexact(square(x))
    if x.ndim > 2 or x.split is None:
        return of_matrices(partial(jnp.linalg.cholesky, upper=upper, symmetrize_input=False), x)
    x = resplit(x, 0)
    found = x.block
    for node, part in _parts(x):
        found = _column(x, found, node, part)
    columns, first = jnp.arange(x.shape[1]), x.layout.begins[x.world.node]
    below = columns <= first + jnp.arange(len(found))[:, None]
    lower = Array(jnp.where(below, found, 0), x.layout, x.world)
    return permute_dims(lower.conj(), (1, 0)) if upper else lower


def _parts(x: Array) -> Iterator[tuple[int, slice]]:
    """The nodes that have rows, and those rows."""
    for node in range(x.world.nodes):
        if x.counts[node]:
            yield node, x.layout.slice_of(node)


def _column(x: Array, found: jax.Array, node: int, part: slice) -> jax.Array:
    """This node's rows with one more block of columns: that of `node`, which factors its own."""
    before = slice(0, part.start)
    own = _shared(x, node, found[:, : part.stop])
    rows, square = own[:, before], own[:, part]
    corner = jnp.linalg.cholesky(square - rows @ rows.T.conj(), symmetrize_input=False)
    if x.world.node < node:
        return found
    if x.world.node == node:
        return found.at[:, part].set(corner)
    left = found[:, part] - found[:, before] @ rows.T.conj()
    return found.at[:, part].set(solve_triangular(corner.conj(), left.T, lower=True).T)
