"""The common part of clustering estimators: first centers, and nearest ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._array import Array, as_array
from .._estimator import Estimator
from .._move import resplit
from .._reduce import sharers
from .._world import World

Distances = Callable[[jax.Array, jax.Array], jax.Array]


class Groups(Estimator):
    """An estimator of `n_clusters` groups."""

    _kind = "clusterer"

    n_clusters: int
    labels_: Array

    def fit(self, x: Any, y: Any = None) -> Any:
        """Finds the groups of rows, ``[n, d]``; y is ignored."""
        raise NotImplementedError

    def fit_predict(self, x: Any, y: Any = None) -> Array:
        """Finds the groups and returns the labels of the rows, in the layout of the rows."""
        return self.fit(x).labels_

    def _rows(self, x: Any) -> Array:
        if self.n_clusters < 1:
            raise ValueError(
                f"n_clusters must be at least 1, got {self.n_clusters}. Give the number of groups."
            )
        if (most := getattr(self, "max_iter", 1)) < 1:
            raise ValueError(f"max_iter must be at least 1, got {most}.")
        found = super()._rows(x)
        if found.shape[0] < self.n_clusters:
            raise ValueError(
                f"{self.n_clusters} clusters need as many rows, got n_samples={found.shape[0]}."
            )
        return found


@partial(jax.jit, static_argnums=2)
def nearest(
    block: jax.Array, centers: jax.Array, distances: Distances
) -> tuple[jax.Array, jax.Array]:
    """Returns the nearest center of each row, and the sum of the distances to them."""
    found = distances(block, centers)
    return jnp.argmin(found, 1), jnp.sum(jnp.min(found, 1))


Seed = int | np.random.RandomState | None
"""A seed, or what draws one; None is 0, so that all nodes have the same."""


def seed_of(state: Seed, x: Array) -> int:
    """Returns the seed that `random_state` stands for; one that is drawn is node 0's on all nodes.

    Args:
        state: see `Seed`.
        x: the rows, on all nodes that call this.
    """
    if isinstance(state, np.random.RandomState):
        return int(x.world.numbers(np.array([state.randint(2**31 - 1)]))[0, 0])
    return state or 0


def first(x: Array, clusters: int, init: Any, seed: Seed, distances: Distances) -> jax.Array:
    """Returns the first centers, ``[k, d]``.

    Args:
        x: rows.
        clusters: their number.
        init: the centers, or k-means++.
        seed: for their choice.
        distances: of rows ``[n, d]`` to centers ``[k, d]``, as summed in the inertia.
    """
    if not isinstance(init, str):
        centers = resplit(as_array(init), None).block
        wanted = (clusters, x.shape[1])
        if centers.shape != wanted:
            raise ValueError(f"init must have the shape {wanted}, got {centers.shape}.")
        if not bool(jnp.isfinite(centers).all()):
            raise ValueError("init contains NaN or infinity. Give finite centers.")
        return jnp.asarray(centers, x.dtype)
    if init != "k-means++":
        raise ValueError(f"init must be 'k-means++' or the centers, got {init!r}.")
    return plus_plus(x, clusters, seed_of(seed, x), distances)


def plus_plus(x: Array, clusters: int, seed: int, distances: Distances) -> jax.Array:
    """Chooses rows as first centers, each with a probability proportional to its distance.

    Of 2 + log(k) rows that are drawn for a center, the one is taken that leaves the least sum of
    distances, as scikit-learn does. Each choice moves P numbers, and as many rows and numbers as
    are drawn; all nodes draw the same random numbers.

    Reference: Arthur and Vassilvitskii (2007), k-means++, SODA.
    """
    world, several = sharers(x), 2 + int(math.log(clusters))
    draws = np.random.default_rng(seed).random((clusters, several))
    weights = jnp.ones((x.block.shape[0], 1), x.dtype)
    chosen: list[jax.Array] = []
    for some in draws:
        rows = _drawn(x, world, weights[:, 0], some if chosen else some[:1])
        found = distances(x.block, rows)
        found = jnp.minimum(weights, found) if chosen else found
        best = int(np.argmin(_sums(found, world)))
        chosen.append(rows[best])
        weights = found[:, best : best + 1]
    return jnp.stack(chosen)


def _sums(columns: jax.Array, world: World) -> np.ndarray:
    """Sums of columns over all nodes, the same to the last bit on all of them."""
    nodes = world.gather(jnp.sum(columns, 0)[None], (1,) * world.nodes)
    return np.asarray(nodes, float).sum(0)


def _drawn(x: Array, world: World, weights: jax.Array, draws: np.ndarray) -> jax.Array:
    """Rows at which the running sum of all nodes' weights passes shares of their total."""
    sums = np.asarray(world.gather(jnp.sum(weights)[None], (1,) * world.nodes), float)
    ends = np.cumsum(sums)
    owners = np.searchsorted(ends, draws * ends[-1], side="right").clip(max=len(ends) - 1)
    if not ends[-1]:  # all distances are 0: any row will do
        owners[:] = next(k for k, count in enumerate(x.counts or (1,)) if count)
    rows = np.zeros((len(draws), x.shape[1]), x.dtype)
    if mine := np.flatnonzero(owners == world.node).tolist() if x.block.shape[0] else []:
        left = draws[mine] * ends[-1] - (ends[world.node] - sums[world.node])
        places = jnp.searchsorted(jnp.cumsum(weights), jnp.asarray(left), side="right")
        rows[mine] = np.asarray(x.block[jnp.minimum(places, x.block.shape[0] - 1)])
    return world.reduce(jnp.asarray(rows), "sum")
