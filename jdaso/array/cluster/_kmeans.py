"""k-means: Lloyd's iterations, each with two reductions: (k + 1) (d + 2) numbers, and one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._array import Array
from .._distances import euclidean
from .._estimator import like_rows, whole
from .._reduce import sharers
from .._world import World
from ._groups import Groups, Seed, first, seed_of


class _Found(NamedTuple):
    """Centers, their last squared shift, the inertia before it, and the number of iterations."""

    centers: jax.Array
    shift: jax.Array
    inertia: jax.Array
    iterations: jax.Array


ROWS = 4096
"""Rows that are computed together: their numbers stay in the processor's cache."""

HIGH = 2**12
"""Unit of the first of the two floats that encode a number of rows: each float is exact."""


@jax.jit
def _squares(block: jax.Array, centers: jax.Array) -> jax.Array:
    """Squared distances of rows to centers, ``[n, k]``."""
    return jnp.sum((block[:, None] - centers) ** 2, 2)


def _nearest_of(rows: jax.Array, centers: jax.Array) -> jax.Array:
    """The index of the nearest center of each row."""
    products = jnp.matmul(centers, rows.T, precision="highest")
    return jnp.argmin(jnp.sum(centers**2, 1)[:, None] - 2 * products, 0)


def _over_rows(
    block: jax.Array, add: Callable[[jax.Array, jax.Array, Any, Any], Any], begin: Any
) -> Any:
    """Goes over the rows in parts: ``add(rows, new, place, found)`` returns the next `found`.

    All parts have one length, so the last one may begin with rows of the previous one: `new` is
    false for those.
    """
    size = min(ROWS, len(block))

    def step(k: Any, found: Any) -> Any:
        place = jnp.minimum(k * size, len(block) - size)
        rows = jax.lax.dynamic_slice_in_dim(block, place, size)
        return add(rows, place + jnp.arange(size) >= k * size, place, found)

    return jax.lax.fori_loop(0, -(-len(block) // size), step, begin) if size else begin


@jax.jit
def _shares(block: jax.Array, offset: jax.Array, centers: jax.Array) -> jax.Array:
    """A node's sums of rows, their numbers, and its part of the inertia, ``[k + 1, d + 2]``.

    Numbers of rows are counted in integers: floats of 32 bits stop at 2^24.
    """
    clusters = jnp.arange(len(centers))[:, None]

    def add(rows: jax.Array, new: jax.Array, place: Any, found: Any) -> Any:
        sums, numbers, total = found
        rows = rows - offset
        best = _nearest_of(rows, centers)
        mine = (best == clusters) & new
        squares = jnp.where(new, jnp.sum((rows - centers[best]) ** 2, 1), 0)
        sums = sums + jnp.matmul(mine.astype(rows.dtype), rows, precision="highest")
        return sums, numbers + jnp.sum(mine, 1), total + jnp.sum(squares)

    zero = jnp.zeros((), block.dtype)
    begin = jnp.zeros_like(centers), jnp.zeros(len(centers), int), zero
    sums, numbers, total = _over_rows(block, add, begin)
    numbers = jnp.stack(jnp.divmod(numbers, HIGH), 1).astype(block.dtype)
    return jnp.pad(jnp.concatenate([sums, numbers], 1), ((0, 1), (0, 0))).at[-1].set(total)


@jax.jit
def _labels(block: jax.Array, offset: jax.Array, centers: jax.Array) -> jax.Array:
    """The index of the nearest center of each row."""

    def add(rows: jax.Array, new: jax.Array, place: Any, found: jax.Array) -> jax.Array:
        best = _nearest_of(rows - offset, centers).astype(found.dtype)
        return jax.lax.dynamic_update_slice_in_dim(found, best, place, 0)

    return _over_rows(block, add, jnp.zeros(len(block), int))


def _step(block: jax.Array, offset: jax.Array, world: World, found: _Found) -> _Found:
    """One iteration; a center without rows stays in place."""
    sums = world.reduce(_shares(block, offset, found.centers), "sum")
    numbers = HIGH * sums[:-1, -2:-1] + sums[:-1, -1:]
    centers = jnp.where(numbers > 0, sums[:-1, :-2] / jnp.maximum(numbers, 1), found.centers)
    # Nodes of other processors may differ in the last bit, and must not decide by their own.
    shift = world.reduce(jnp.sum((centers - found.centers) ** 2), "max")
    return _Found(centers, shift, sums[-1, 0], found.iterations + 1)


def _goes_on(most: int, tolerance: Any, found: _Found) -> Any:
    return (found.iterations < most) & (found.shift > tolerance)


@partial(jax.jit, static_argnames=("world", "most"))
def _compiled(
    block: jax.Array, offset: jax.Array, begin: _Found, tolerance: Any, *, world: World, most: int
) -> _Found:
    goes_on = partial(_goes_on, most, tolerance)
    return jax.lax.while_loop(goes_on, partial(_step, block, offset, world), begin)


def _eager(
    block: jax.Array, offset: jax.Array, begin: _Found, tolerance: Any, *, world: World, most: int
) -> _Found:
    found = begin
    while _goes_on(most, tolerance, found):
        found = _step(block, offset, world, found)
    return found


class KMeans(Groups):
    """k-means clustering, like `sklearn.cluster.KMeans`.

    Each iteration moves each center to the mean of the rows that are nearest to it, until the
    centers move by less than `tol` times the mean variance of the columns (squared).

    Args:
        n_clusters: k.
        init: ``"k-means++"``, or the first centers, ``[k, d]``.
        n_init: the number of runs, each from other first centers; the one with the least inertia is
            kept. ``"auto"`` is 1.
        max_iter: the maximum number of iterations.
        tol: see above.
        random_state: a seed for the first centers, or a `numpy.random.RandomState`, of which
            node 0's draws one for all.
        compiled: whether all iterations are one compiled program, with their reductions; needs
            mpi4jax where there are several nodes. False: each iteration returns to Python.

    Attributes:
        cluster_centers_: ``[k, d]``, the same on all nodes.
        labels_: the nearest center of each row, in the layout of the rows.
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
        n_init: int | str = 1,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: Seed = 0,
        compiled: bool = False,
    ):
        self.n_clusters, self.init, self.n_init, self.max_iter = n_clusters, init, n_init, max_iter
        self.tol, self.random_state, self.compiled = tol, random_state, compiled

    def fit(self, x: Any, y: Any = None) -> KMeans:
        """Finds the centers.

        Args:
            x: rows, ``[n, d]``; split along 0, or whole on each node.
            y: ignored.

        Raises:
            ValueError: there are fewer rows than clusters, or `x` is not a matrix of finite
                numbers.
        """
        x = self._rows(x)
        world, offset = sharers(x), x.mean(axis=0).block  # nearer to 0 squares lose no digits
        tolerance = self.tol * float(world.reduce(jnp.mean(x.var(axis=0).block), "max"))
        begin = seed_of(self.random_state, x)
        count = 1 if self.n_init == "auto" else int(self.n_init)
        seeds = range(begin, begin + count)
        runs = (self._run(x, world, offset, seed, tolerance) for seed in seeds)
        found, self.inertia_ = min(runs, key=lambda one: one[1])
        self.cluster_centers_ = whole(found.centers + offset, x)
        self.n_iter_ = int(found.iterations)
        self.labels_ = like_rows(_labels(x.block, offset, found.centers), x)
        return self

    def _run(
        self, x: Array, world: World, offset: jax.Array, seed: int, tolerance: float
    ) -> tuple[_Found, float]:
        """One run from first centers, and its inertia; centers without the offset."""
        begin = first(x, self.n_clusters, self.init, seed, _squares) - offset
        state = _Found(begin, jnp.asarray(jnp.inf, x.dtype), jnp.zeros((), x.dtype), jnp.int32(0))
        run = _compiled if self.compiled else _eager
        found = run(x.block, offset, state, tolerance, world=world, most=self.max_iter)
        last = _shares(x.block, offset, found.centers)[-1, 0]
        return found, float(world.reduce(last, "sum"))

    def transform(self, x: Any) -> Array:
        """Returns the distances of rows to the centers, ``[n, k]``. Nothing moves."""
        x = self._more_rows(x)
        return like_rows(euclidean(x.block, self.cluster_centers_.block), x)

    def fit_transform(self, x: Any, y: Any = None) -> Array:
        """Finds the centers; returns the distances of rows to them. Moves what `fit` does."""
        return self.fit(x).transform(x)

    def score(self, x: Any, y: Any = None) -> float:
        """Returns the sum of squared distances to the nearest centers, times -1; y is ignored.

        Moves one number from each node.
        """
        x, centers = self._more_rows(x), self.cluster_centers_.block
        offset = jnp.mean(centers, 0)
        own = _shares(x.block, offset, centers - offset)[-1, 0]
        return -float(sharers(x).reduce(own, "sum"))

    def predict(self, x: Any) -> Array:
        """Returns the index of the nearest center of each row. Nothing moves."""
        x, centers = self._more_rows(x), self.cluster_centers_.block
        offset = jnp.mean(centers, 0)
        return like_rows(_labels(x.block, offset, centers - offset), x)
