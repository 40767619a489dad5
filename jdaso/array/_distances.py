"""Distances between rows: each node computes those of its rows while the others' pass by.

=========  =========  ===============================================  =========
rows x     rows y     movement                                         result
=========  =========  ===============================================  =========
whole      whole      nothing                                          whole
split      whole      nothing                                          rows
whole      split      nothing                                          columns
split      split      blocks of y pass from node to node               rows
=========  =========  ===============================================  =========

Rows y of at most 8 MB are gathered by each node, which moves as many bytes. Larger blocks are
passed on while the distances to them are computed, so that a node holds some rows of two blocks at
a time, besides its part of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ._array import Array, as_array, of_one_world
from ._elementwise import square
from ._in_place import written
from ._layout import ArrayLayout
from ._move import resplit
from ._passing import passing, whole_if_small
from ._reduce import type_of_means
from ._varied import varied

TOGETHER = 8
"""Columns whose differences are added in one pass over the result."""
AT_A_TIME = 2**22
"""Distances that are in memory at a time where only their sums or minima are needed."""


def squares(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns squared distances, ``[n, d]``, ``[m, d]`` -> ``[n, m]``."""
    return _added(x, y, lambda total, difference: total + difference**2)


def _added(x: jax.Array, y: jax.Array, add: Callable[..., jax.Array]) -> jax.Array:
    """Adds columns' differences to the result, several at a time; no digits cancel.

    The last ones are added outside of the loop: what follows then needs no other pass.
    """
    looped = max(0, x.shape[1] - 1) // TOGETHER * TOGETHER
    first, second = x.T, y.T

    def step(total: jax.Array, both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        for one, other in zip(*both, strict=True):
            total = add(total, jnp.abs(one[:, None] - other))
        return total, None

    total = jnp.zeros((len(x), len(y)), x.dtype)
    if looped:
        groups = looped // TOGETHER, TOGETHER
        a, b = (one[:looped].reshape(*groups, one.shape[1]) for one in (first, second))
        total, _ = jax.lax.scan(step, total, (a, b))
    return step(total, (first[looped:], second[looped:]))[0]


@jax.jit
def euclidean(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the distances of blocks' rows, ``[n, d]``, ``[m, d]`` -> ``[n, m]``."""
    return jnp.sqrt(squares(x, y))


@jax.jit
def _by_products(x: jax.Array, y: jax.Array) -> jax.Array:
    lengths = jnp.sum(x**2, 1)[:, None] + jnp.sum(y**2, 1)
    products = jnp.matmul(x, y.T, precision="highest")
    return jnp.sqrt(jnp.maximum(lengths - 2 * products, 0))


@jax.jit
def city(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the sums of absolute differences of blocks' rows."""
    return _added(x, y, jnp.add)


@jax.jit
def _largest(x: jax.Array, y: jax.Array) -> jax.Array:
    return _added(x, y, jnp.maximum)


_METRICS = {
    "euclidean": euclidean,
    "sqeuclidean": jax.jit(squares),
    "cityblock": city,
    "chebyshev": _largest,
}


def cdist(
    x: Any, y: Any = None, metric: str = "euclidean", *, quadratic_expansion: bool = False
) -> Array:
    """Distances between the rows of two matrices, ``[n, d]``, ``[m, d]`` -> ``[n, m]``.

    Args:
        x: rows.
        y: rows; None: those of x.
        metric: euclidean, sqeuclidean, cityblock or chebyshev.
        quadratic_expansion: whether to compute euclidean ones from products, as
            ``|x|² + |y|² - 2 x y``: faster for many columns, but rows that are close to each other
            compared with their distance from 0 lose digits.

    Moves: see the table of this module; if both are split, m d (P - 1) / P numbers from each node.

    Raises:
        ValueError: the rows differ in length, are complex, or there is no such metric.
    """
    if metric not in _METRICS:
        raise ValueError(f"There is no metric {metric!r}. Take one of {', '.join(_METRICS)}.")
    if quadratic_expansion and metric != "euclidean":
        raise ValueError(f"quadratic_expansion is for euclidean distances, the metric is {metric}.")
    function = _by_products if quadratic_expansion else _METRICS[metric]
    return _each(x, x if y is None else y, function)


def rbf(x: Any, y: Any = None, *, sigma: float = 1.0, quadratic_expansion: bool = False) -> Array:
    """The kernel ``exp(-|x - y|² / 2 sigma²)`` of the rows of two matrices; moves like `cdist`."""
    return kernel(x, y, 1 / (2 * sigma**2), quadratic_expansion=quadratic_expansion)


def kernel(x: Any, y: Any, gamma: float, *, quadratic_expansion: bool = False) -> Array:
    """The kernel ``exp(-gamma |x - y|²)`` of the rows of two matrices; moves like `cdist`."""
    if quadratic_expansion:
        found = square(cdist(x, y, quadratic_expansion=True))
    else:
        found = cdist(x, y, "sqeuclidean")
    return Array(_kernel(found.block, gamma), found.layout, found.world)


@partial(jax.jit, donate_argnums=0)
def _kernel(squares: jax.Array, gamma: Any) -> jax.Array:
    return jnp.exp(-gamma * squares)


def _each(x: Any, y: Any, function: Callable[..., jax.Array]) -> Array:
    a, b = (_lines(one) for one in of_one_world(x, y))
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"Rows of {a.shape} and {b.shape} differ in length. Give equal ones.")
    dtype = jnp.result_type(a.dtype, b.dtype)
    a, b = (Array(one.block.astype(dtype), one.layout, one.world) for one in (a, b))
    b = b if a.split is None else whole_if_small(b)
    shape = (a.shape[0], b.shape[0])
    if a.split is None or b.split is None:
        split = None if a.split == b.split else 0 if b.split is None else 1
        layout = ArrayLayout(shape, split, a.counts or b.counts)
        shared = (lambda rows: rows) if split is None else partial(varied, at=a.world)
        blocks = (shared(one.block) if one.split is None else one.block for one in (a, b))
        return Array(function(*blocks), layout, a.world)
    found = jnp.zeros((a.block.shape[0], shape[1]), dtype)
    for owner, begin, rows in passing(b):
        column = b.layout.begins[owner] + begin
        found = written(_put_distances, found, a.block, rows, column, function=function)
    return Array(found, ArrayLayout(shape, 0, a.counts), a.world)


def _put_distances(
    found: jax.Array, x: jax.Array, y: jax.Array, column: Any, *, function: Callable[..., jax.Array]
) -> jax.Array:
    """Distances, with those to rows that pass by written to their columns, in place."""
    return jax.lax.dynamic_update_slice(found, function(x, y), (0, column))


def _lines(x: Any) -> Array:
    x = as_array(x)
    if x.ndim != 2 or jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise ValueError(f"Distances are of rows of real numbers, got {x.shape} of {x.dtype}.")
    x = resplit(x, 0) if x.split == 1 else x
    return Array(x.block.astype(type_of_means(x.dtype)), x.layout, x.world)


def passing_by(rows: Array) -> Iterator[tuple[int, jax.Array]]:
    """Yields (the number of the first, rows) for all rows, some at a time; moves like `passing`."""
    rows = whole_if_small(rows)
    if rows.split is None:
        yield 0, rows.block
        return
    for owner, begin, block in passing(rows):
        yield rows.layout.begins[owner] + begin, block
