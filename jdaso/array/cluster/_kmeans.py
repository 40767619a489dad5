"""k-means: Lloyd's iterations, each with one reduction of (k + 1) (d + 1) numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._array import Array, as_array
from .._layout import Layout
from .._move import resplit
from .._world import ALONE, World


class _Found(NamedTuple):
    """Centers, their last squared shift, the inertia before it, and the number of iterations."""

    centers: jax.Array
    shift: jax.Array
    inertia: jax.Array
    iterations: jax.Array


ROWS = 4096
"""Rows that are looked at together: what is computed of them stays in the processor's cache."""


def _nearest_of(rows: jax.Array, centers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The nearest center of each row, and its squared distance less the row's own square."""
    far = jnp.sum(centers**2, 1)[:, None] - 2 * (centers @ rows.T)
    return jnp.argmin(far, 0), jnp.min(far, 0)


def _over_rows(
    block: jax.Array, add: Callable[[jax.Array, jax.Array, Any, Any], Any], begin: Any
) -> Any:
    """Goes over the rows by parts: ``add(rows, new, place, found)`` returns the next `found`.

    All parts have one length, so the last one may begin with rows of the one before: `new` is false
    for those.
    """
    size = min(ROWS, len(block))

    def step(k: Any, found: Any) -> Any:
        place = jnp.minimum(k * size, len(block) - size)
        rows = jax.lax.dynamic_slice_in_dim(block, place, size)
        return add(rows, place + jnp.arange(size) >= k * size, place, found)

    return jax.lax.fori_loop(0, -(-len(block) // size), step, begin) if size else begin


@jax.jit
def _shares(block: jax.Array, offset: jax.Array, centers: jax.Array) -> jax.Array:
    """A node's sums of rows, their numbers, and its part of the inertia, ``[k + 1, d + 1]``."""
    clusters = jnp.arange(len(centers))[:, None]

    def add(rows: jax.Array, new: jax.Array, place: Any, found: jax.Array) -> jax.Array:
        rows = rows - offset
        best, least = _nearest_of(rows, centers)
        mine = ((best == clusters) & new).astype(rows.dtype)
        sums = jnp.concatenate([mine @ rows, jnp.sum(mine, 1)[:, None]], 1)
        squares = jnp.where(new, jnp.maximum(least + jnp.sum(rows**2, 1), 0), 0)
        return found + jnp.concatenate([sums, jnp.full((1, sums.shape[1]), jnp.sum(squares))])

    shape = len(centers) + 1, block.shape[1] + 1
    return _over_rows(block, add, jnp.zeros(shape, block.dtype))


@jax.jit
def _labels(block: jax.Array, offset: jax.Array, centers: jax.Array) -> jax.Array:
    """The index of the nearest center of each row."""

    def add(rows: jax.Array, new: jax.Array, place: Any, found: jax.Array) -> jax.Array:
        best = _nearest_of(rows - offset, centers)[0].astype(found.dtype)
        return jax.lax.dynamic_update_slice_in_dim(found, best, place, 0)

    return _over_rows(block, add, jnp.zeros(len(block), int))


@jax.jit
def _closer(block: jax.Array, row: jax.Array, before: jax.Array) -> jax.Array:
    """Squared distances to a row, where they are smaller than before."""
    return jnp.minimum(before, jnp.sum((block - row) ** 2, 1))


def _step(block: jax.Array, offset: jax.Array, world: World, found: _Found) -> _Found:
    """One iteration; a center without rows stays where it is."""
    sums = world.reduce(_shares(block, offset, found.centers), "sum")
    numbers = sums[:-1, -1:]
    centers = jnp.where(numbers > 0, sums[:-1, :-1] / jnp.maximum(numbers, 1), found.centers)
    # Nodes of other processors may differ in the last bit, and must not decide by their own.
    shift = world.reduce(jnp.sum((centers - found.centers) ** 2), "max")
    return _Found(centers, shift, sums[-1, 0], found.iterations + 1)


def _goes_on(most: int, tolerance: float, found: _Found) -> Any:
    return (found.iterations < most) & (found.shift > tolerance)


@partial(jax.jit, static_argnames=("world", "most"))
def _compiled(
    block: jax.Array, offset: jax.Array, begin: _Found, tolerance: float, *, world: World, most: int
) -> _Found:
    goes_on = partial(_goes_on, most, tolerance)
    return jax.lax.while_loop(goes_on, partial(_step, block, offset, world), begin)


def _eager(
    block: jax.Array, offset: jax.Array, begin: _Found, tolerance: float, *, world: World, most: int
) -> _Found:
    found = begin
    while _goes_on(most, tolerance, found):
        found = _step(block, offset, world, found)
    return found


class KMeans:
    """k-means clustering, as `sklearn.cluster.KMeans`.

    Each iteration moves each center to the mean of the rows that are nearest to it, until the
    centers move by less than `tol` times the mean variance of the columns (squared).

    Args:
        n_clusters: k.
        init: ``"k-means++"``, or the first centers, ``[k, d]``.
        max_iter: the most iterations.
        tol: see above.
        random_state: a seed of the first centers.
        compiled: whether all iterations are one compiled program, with their reductions; needs
            mpi4jax where there are several nodes. False: each iteration returns to Python.

    Attributes:
        cluster_centers_: ``[k, d]``, the same on all nodes.
        labels_: the nearest center of each row, laid as the rows.
        inertia_: sum of squared distances to the nearest center.
        n_iter_: the number of iterations.

    References: Lloyd (1982), IEEE Transactions on Information Theory 28; Arthur and Vassilvitskii
    (2007), k-means++, SODA.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means++",
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int = 0,
        compiled: bool = False,
    ):
        self.n_clusters, self.init, self.max_iter = n_clusters, init, max_iter
        self.tol, self.random_state, self.compiled = tol, random_state, compiled

    def fit(self, x: Any, y: Any = None) -> KMeans:
        """Finds the centers.

        Args:
            x: rows, ``[n, d]``; split along 0, or whole on each node.
            y: ignored.

        Raises:
            ValueError: there are fewer rows than clusters, or `x` is no matrix.
        """
        x = _rows(x)
        if x.shape[0] < self.n_clusters:
            raise ValueError(f"{self.n_clusters} clusters need as many rows, got {x.shape[0]}.")
        world, offset = _world_of(x), x.mean(axis=0).block
        begin = jnp.asarray(self._first(x, world, offset), x.dtype)
        state = _Found(begin, jnp.asarray(jnp.inf, x.dtype), jnp.zeros((), x.dtype), jnp.int32(0))
        tolerance = self.tol * float(world.reduce(jnp.mean(x.var(axis=0).block), "max"))
        run = _compiled if self.compiled else _eager
        found = run(x.block, offset, state, tolerance, world=world, most=self.max_iter)
        centers = found.centers + offset
        self.cluster_centers_ = Array(centers, Layout(centers.shape), x.world)
        self.n_iter_ = int(found.iterations)
        self.labels_ = _nearest(x, offset, found.centers)
        last = _shares(x.block, offset, found.centers)[-1, 0]
        self.inertia_ = float(world.reduce(last, "sum"))
        return self

    def predict(self, x: Any) -> Array:
        """Returns the index of the nearest center of each row. Nothing moves."""
        centers = self.cluster_centers_.block
        offset = jnp.mean(centers, 0)
        return _nearest(_rows(x), offset, centers - offset)

    def fit_predict(self, x: Any, y: Any = None) -> Array:
        """Finds the centers and returns the labels."""
        return self.fit(x).labels_

    def _first(self, x: Array, world: World, offset: jax.Array) -> Any:
        if not isinstance(self.init, str):
            centers = resplit(as_array(self.init), None).block
            if centers.shape != (self.n_clusters, x.shape[1]):
                wanted = (self.n_clusters, x.shape[1])
                raise ValueError(f"init must have the shape {wanted}, got {centers.shape}.")
            return centers - offset
        if self.init != "k-means++":
            raise ValueError(f"init must be 'k-means++' or the centers, got {self.init!r}.")
        return plus_plus(x, world, self.n_clusters, self.random_state) - offset


def plus_plus(x: Array, world: World, clusters: int, seed: int) -> jax.Array:
    """Chooses rows as first centers: each with a probability in proportion to its squared distance.

    Each choice moves P numbers and one row; all nodes draw the same random numbers.
    """
    draws = np.random.default_rng(seed).random(clusters)
    weights = jnp.ones(x.block.shape[0], x.dtype)
    furthest = jnp.full(x.block.shape[0], jnp.inf, x.dtype)
    chosen: list[jax.Array] = []
    for draw in draws:
        chosen.append(_drawn(x, world, weights, draw))
        weights = _closer(x.block, chosen[-1], furthest if len(chosen) == 1 else weights)
    return jnp.stack(chosen)


def _drawn(x: Array, world: World, weights: jax.Array, draw: float) -> jax.Array:
    """The row at which the running sum of all nodes' weights passes a share of their total."""
    sums = np.asarray(world.gather(jnp.sum(weights)[None], (1,) * world.nodes), float)
    ends = np.cumsum(sums)
    owner = min(int(np.searchsorted(ends, draw * ends[-1], side="right")), len(ends) - 1)
    if not ends[-1]:  # all distances are 0: any row will do
        owner = next(k for k, count in enumerate(x.counts or (1,)) if count)
    row = jnp.zeros(x.shape[1], x.dtype)
    if owner == world.node and x.block.shape[0]:
        left = draw * ends[-1] - (ends[owner] - sums[owner])
        place = int(jnp.searchsorted(jnp.cumsum(weights), left, side="right"))
        row = x.block[min(place, x.block.shape[0] - 1)]
    return world.reduce(row, "sum")


def _rows(x: Any) -> Array:
    x = as_array(x)
    if x.ndim != 2:
        raise ValueError(f"k-means takes rows, [n, d]; the shape is {x.shape}.")
    x = resplit(x, 0) if x.split == 1 else x
    wide = x.dtype.kind == "f" and x.itemsize >= 4
    return x if wide else Array(x.block.astype(jnp.float32), x.layout, x.world)


def _nearest(x: Array, offset: jax.Array, centers: jax.Array) -> Array:
    """The nearest centers; rows are moved nearer to the origin, where squares lose no digits."""
    return Array(_labels(x.block, offset, centers), Layout(x.shape[:1], x.split, x.counts), x.world)


def _world_of(x: Array) -> World:
    """The nodes that share the rows; one that has all of them needs no other."""
    return ALONE if x.split is None else x.world
