"""k-medians: the center of a group is the median of each column."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._array import Array
from .._distances import city
from .._estimator import like_rows, whole
from .._reduce import sharers
from .._world import World
from ._groups import Groups, Seed, first, nearest
from ._medians import medians, ordered


class KMedians(Groups):
    """k-medians clustering: least sums of ``|x - center|₁``, which few outliers hardly change.

    Each iteration finds the nearest center of each row, and moves each center to the median of its
    rows in each column. The medians are exact; they move no row, but 2 k d integers from each node
    for each bit of a number (32 small operations in float32).

    Args:
        n_clusters: k.
        init: ``"k-means++"``, or the first centers, ``[k, d]``.
        max_iter: the maximum number of iterations.
        tol: iterations end when centers move by less than this times the mean standard deviation of
            the columns, on average of their coordinates.
        random_state: a seed for the first centers.

    Attributes:
        cluster_centers_: ``[k, d]``, the same on all nodes.
        labels_: the nearest center of each row, in the layout of the rows.
        inertia_: sum of distances to the nearest center.
        n_iter_: the number of iterations.

    Reference: Jain and Dubes (1988), Algorithms for Clustering Data.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means++",
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: Seed = 0,
    ):
        self.n_clusters, self.init, self.max_iter = n_clusters, init, max_iter
        self.tol, self.random_state = tol, random_state

    def fit(self, x: Any, y: Any = None) -> KMedians:
        """Finds the centers of rows, ``[n, d]``; y is ignored."""
        x = self._rows(x)
        at, order = sharers(x), ordered(x.block)
        centers = first(x, self.n_clusters, self.init, self.random_state, city)
        tolerance = self.tol * float(at.reduce(jnp.mean(x.std(axis=0).block), "max"))
        for done in range(1, self.max_iter + 1):
            labels, _ = nearest(x.block, centers, city)
            moved = _moved(order, labels, centers, at)
            shift = float(at.reduce(jnp.mean(jnp.abs(moved - centers)), "max"))
            centers, self.n_iter_ = moved, done
            if shift <= tolerance:
                break
        labels, total = nearest(x.block, centers, city)
        self.cluster_centers_, self.labels_ = whole(centers, x), like_rows(labels, x)
        self.inertia_ = float(at.reduce(total, "sum"))
        return self

    def predict(self, x: Any) -> Array:
        """Returns the index of the nearest center of each row. Moves two numbers."""
        x = self._more_rows(x)
        return like_rows(nearest(x.block, self.cluster_centers_.block, city)[0], x)


def _moved(order: jax.Array, labels: jax.Array, centers: jax.Array, at: World) -> jax.Array:
    """The medians; a center without rows stays in place."""
    numbers = at.sums(np.bincount(np.asarray(labels), minlength=len(centers)))
    found = medians(order, labels, numbers, np.dtype(centers.dtype), at)
    return jnp.where(jnp.asarray(numbers > 0)[:, None], jnp.asarray(found), centers)
