"""Results that are computed part by part, each written to its place in the memory of the whole.

So the memory that an operation takes beyond its operands and its result is that of a part. Only a
result that nothing else refers to may be given here: its memory is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
from jax.core import Tracer

PIECE_BYTES = 1 << 23
"""Bytes of a part; an operation holds a few at a time."""


def pieces(rows: int, width: int, *, itemsize: int) -> Iterator[slice]:
    """Yields ranges of rows of at most 8 MB; an empty one if there are no rows.

    Args:
        rows: their number.
        width: numbers in the longest row of an array that a piece is part of.
        itemsize: bytes of a number.
    """
    step = max(1, PIECE_BYTES // max(1, itemsize * width))
    for begin in range(0, max(rows, 1), step):
        yield slice(begin, min(begin + step, rows))


def is_one_piece(nbytes: int) -> bool:
    """Returns whether an array takes at most the memory of a part, 8 MB."""
    return nbytes <= PIECE_BYTES


def pieces_of(*operands: jax.Array, rows: int, width: int, itemsize: int) -> list[slice]:
    """Returns ranges of rows as `pieces` does; all rows at once in a program that is traced."""
    if any(isinstance(x, Tracer) for x in operands):
        return [slice(0, rows)]
    return list(pieces(rows, width, itemsize=itemsize))


def written(
    function: Callable[..., jax.Array], total: jax.Array, /, *rest: Any, **static: Any
) -> jax.Array:
    """Returns ``function(total, *rest)``, in the memory of `total`, which is given up.

    Args:
        function: a function that writes to a part of `total`.
        total: the whole result so far.
        rest: other arguments.
        static: arguments that are not arrays, for each of which a program is compiled.
    """
    if any(isinstance(x, Tracer) for x in jax.tree.leaves((total, rest))):
        return function(total, *rest, **static)
    return _compiled(function, tuple(static))(total, *rest, **static)


@cache
def _compiled(function: Callable[..., jax.Array], static: tuple[str, ...]) -> Any:
    return jax.jit(function, donate_argnums=0, static_argnames=static)


def put(total: jax.Array, part: jax.Array, row: Any, column: Any) -> jax.Array:
    """Returns a matrix with a part written to it, from this row and column on."""
    return jax.lax.dynamic_update_slice(total, part.astype(total.dtype), (row, column))


def add_product(
    total: jax.Array, a: jax.Array, b: jax.Array, *, row: int = 0, inner: int = 0, column: int = 0
) -> jax.Array:
    """Returns a sum of products, with ``a[:, inner : inner + len(b)] @ b`` added to its part.

    Args:
        total: the sum so far.
        a: a matrix.
        b: a matrix.
        row: the first row of the part, which has as many rows as `a`.
        inner: the first column of `a` that counts.
        column: the first column of the part, which has as many columns as `b`.
    """
    itemsize, width = max(total.dtype.itemsize, a.dtype.itemsize), max(b.shape)
    for rows in pieces_of(total, a, b, rows=a.shape[0], width=width, itemsize=itemsize):
        at = row + rows.start, rows.start, inner, column
        total = written(_add_rows, total, a, b, at, rows=rows.stop - rows.start)
    return total


def _add_rows(
    total: jax.Array, a: jax.Array, b: jax.Array, at: tuple[Any, Any, Any, Any], *, rows: int
) -> jax.Array:
    row, begin, inner, column = at
    part = jax.lax.dynamic_slice(a, (begin, inner), (rows, b.shape[0])) @ b
    before = jax.lax.dynamic_slice(total, (row, column), part.shape)
    added = before + part.astype(total.dtype)
    return jax.lax.dynamic_update_slice(total, added, (row, column))
