"""k-means: Lloyd's iterations, each with two reductions: (k + 1) (d + 2) numbers, and one."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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


@jax.jit
def _farthest(block: jax.Array, offset: jax.Array, centers: jax.Array) -> jax.Array:
    """A node's k rows that are farthest from their centers, ``[k, d + 2]``.

    Each with the squared distance (-1 if the node has fewer rows) and the number of its center.
    """

    def add(rows: jax.Array, new: jax.Array, place: Any, found: jax.Array) -> jax.Array:
        rows = rows - offset
        squares = jnp.sum((rows - centers[_nearest_of(rows, centers)]) ** 2, 1)
        return jax.lax.dynamic_update_slice_in_dim(found, squares, place, 0)

    count = min(len(centers), len(block))
    squares = _over_rows(block, add, jnp.zeros(len(block), block.dtype))
    squares, places = jax.lax.top_k(squares, count)
    rows = block[places] - offset
    labels = _nearest_of(rows, centers).astype(block.dtype)
    found = jnp.concatenate([rows, squares[:, None], labels[:, None]], 1)
    return jnp.pad(found, ((0, len(centers) - count), (0, 0)), constant_values=-1)


def _relocated(
    candidates: jax.Array, sums: jax.Array, numbers: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Sums and numbers of rows, with a row for each center that had none.

    The rows farthest from their centers, of all nodes, are taken from these; as scikit-learn does.
    """
    order = jnp.argsort(-candidates[:, -2], stable=True)[: len(sums)]
    rows, squares, labels = candidates[order, :-2], candidates[order, -2], candidates[order, -1]
    empty = numbers[:, 0] == 0
    used = (jnp.arange(len(sums)) < jnp.sum(empty)) & (squares > 0)
    owners = jnp.maximum(labels, 0).astype(int)
    sums = sums.at[owners].add(jnp.where(used[:, None], -rows, 0))
    numbers = numbers.at[owners, 0].add(jnp.where(used, -1, 0))
    place = jnp.maximum(jnp.cumsum(empty) - 1, 0)  # among the centers without rows
    takes = (empty & used[place])[:, None]
    return jnp.where(takes, rows[place], sums), jnp.where(takes, 1, numbers)


def _if(condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    return yes() if condition else no()


def _step(
    block: jax.Array, offset: jax.Array, world: World, found: _Found, choose: Callable[..., Any]
) -> _Found:
    """One iteration; `choose` is `jax.lax.cond`, or the same outside of a program."""
    shares = world.reduce(_shares(block, offset, found.centers), "sum")
    sums, numbers = shares[:-1, :-2], HIGH * shares[:-1, -2:-1] + shares[:-1, -1:]

    def relocated() -> tuple[jax.Array, jax.Array]:
        of_nodes = world.gather(_farthest(block, offset, found.centers), (len(sums),) * world.nodes)
        return _relocated(of_nodes, sums, numbers)

    sums, numbers = choose(jnp.any(numbers == 0), relocated, lambda: (sums, numbers))
    centers = jnp.where(numbers > 0, sums / jnp.maximum(numbers, 1), found.centers)
    # Nodes of other processors may differ in the last bit, and must not decide by their own.
    shift = world.reduce(jnp.sum((centers - found.centers) ** 2), "max")
    return _Found(centers, shift, shares[-1, 0], found.iterations + 1)


def _goes_on(most: int, tolerance: Any, found: _Found) -> Any:
    return (found.iterations < most) & (found.shift > tolerance)


@partial(jax.jit, static_argnames=("world", "most"))
def _compiled(
    block: jax.Array, offset: jax.Array, begin: _Found, tolerance: Any, *, world: World, most: int
) -> _Found:
    goes_on = partial(_goes_on, most, tolerance)
    step = partial(_step, block, offset, world, choose=jax.lax.cond)
    return jax.lax.while_loop(goes_on, step, begin)


def _eager(
    block: jax.Array, offset: jax.Array, begin: _Found, tolerance: Any, *, world: World, most: int
) -> _Found:
    found = begin
    while _goes_on(most, tolerance, found):
        found = _step(block, offset, world, found, _if)
    return found


class KMeans(Groups):
    """k-means clustering, like `sklearn.cluster.KMeans`.

    Each iteration moves each center to the mean of the rows that are nearest to it, until the
    centers move by less than `tol` times the mean variance of the columns (squared). A center
    without rows moves to the row that is farthest from its own, which moves k rows more.

    Args:
        n_clusters: k.
        init: ``"k-means++"``, or the first centers, ``[k, d]``.
        n_init: the number of runs, each from other first centers; the one with the least inertia is
            kept. ``"auto"`` is 1. With given centers there is one run.
        max_iter: the maximum number of iterations.
        tol: see above.
        random_state: a seed for the first centers; None is 0. Or a `numpy.random.RandomState`, of
            which node 0's draws one for all.
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
        runs = (self._run(x, world, offset, seed, tolerance) for seed in self._seeds(x))
        found, self.inertia_, empty = min(runs, key=lambda one: one[1])
        if empty:
            warnings.warn(
                f"{empty} of {self.n_clusters} clusters have no rows. Rows may be equal: take "
                f"n_clusters={self.n_clusters - empty}.",
                stacklevel=2,
            )
        self.cluster_centers_ = whole(found.centers + offset, x)
        self.n_iter_ = int(found.iterations)
        self.labels_ = like_rows(_labels(x.block, offset, found.centers), x)
        return self

    def _seeds(self, x: Array) -> list[int]:
        """The seed of each run."""
        given: Any = 1 if self.n_init == "auto" else self.n_init
        count = operator.index(given)
        if count < 1:
            raise ValueError(f"n_init must be at least 1, got {count}.")
        begin = seed_of(self.random_state, x)
        if not isinstance(self.init, str):
            return [begin]
        return [begin, *map(int, np.random.SeedSequence(begin).generate_state(count - 1))]

    def _run(
        self, x: Array, world: World, offset: jax.Array, seed: int, tolerance: float
    ) -> tuple[_Found, float, int]:
        """One run, its inertia, and the number of centers without rows; centers without offset."""
        begin = first(x, self.n_clusters, self.init, seed, _squares) - offset
        state = _Found(begin, jnp.asarray(jnp.inf, x.dtype), jnp.zeros((), x.dtype), jnp.int32(0))
        run = _compiled if self.compiled else _eager
        found = run(x.block, offset, state, tolerance, world=world, most=self.max_iter)
        last = world.reduce(_shares(x.block, offset, found.centers), "sum")
        return found, float(last[-1, 0]), int(jnp.sum((last[:-1, -2:] == 0).all(1)))

    def transform(self, x: Any) -> Array:
        """Returns the distances of rows to the centers, ``[n, k]``. Moves two numbers."""
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
        """Returns the index of the nearest center of each row. Moves two numbers."""
        x, centers = self._more_rows(x), self.cluster_centers_.block
        offset = jnp.mean(centers, 0)
        return like_rows(_labels(x.block, offset, centers - offset), x)
