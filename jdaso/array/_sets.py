"""Sets of elements, as ascending lines without repetition."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ._array import Array, of_one_world
from ._index import getitem
from ._shape import concat, ravel
from ._take import isin
from ._unique_rows import unique


def _line(x: Array) -> Array:
    found = unique(x)
    assert isinstance(found, Array)
    return found


def union1d(x1: Any, x2: Any) -> Array:
    """The elements of either array; all NaN are one. Moves what `concat` and `sort` move."""
    return _line(concat([ravel(x) for x in of_one_world(x1, x2)]))


def intersect1d(x1: Any, x2: Any) -> Array:
    """The elements of both arrays, without NaN. Moves what `sort` of x1 and `isin` move."""
    a, b = of_one_world(x1, x2)
    found = _line(a.astype(jnp.result_type(a.dtype, b.dtype)))
    return getitem(found, isin(found, b))


def setdiff1d(x1: Any, x2: Any) -> Array:
    """The elements of the first array that the second lacks. Moves what `intersect1d` moves."""
    a, b = of_one_world(x1, x2)
    found = _line(a)
    return getitem(found, isin(found, b, invert=True))


def setxor1d(x1: Any, x2: Any) -> Array:
    """The elements of one array that the other lacks. Moves what `setdiff1d` moves, twice."""
    return union1d(setdiff1d(x1, x2), setdiff1d(x2, x1))
