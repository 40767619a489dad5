"""k-medoids: the center of a group is the row that is nearest to all others of the group."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._array import Array
from .._distances import AT_A_TIME, euclidean, passing_by, squares
from .._estimator import like_rows, whole
from .._reduce import sharers
from .._world import World
from ._groups import Groups, Seed, first, nearest


class KMedoids(Groups):
    """k-medoids clustering: least sums of euclidean distances to centers that are rows themselves.

    Each iteration finds the nearest center of each row, and then the row of each group with the
    least sum of distances to the group's others. For this the blocks pass from node to node, n
    (d + 1) (P - 1) / P numbers from each; each node computes the n² / P distances of its rows, 2^22
    of them at a time.

    Args:
        n_clusters: k.
        init: ``"k-means++"``, or the first centers, ``[k, d]``.
        max_iter: the maximum number of iterations.
        random_state: a seed for the first centers.

    Attributes:
        cluster_centers_: ``[k, d]``, rows of x, the same on all nodes.
        medoid_indices_: their numbers, ``[k]``, on the host; -1 for a center without rows: a given
            one, or one that is equal to another.
        labels_: the nearest center of each row, in the layout of the rows.
        inertia_: sum of distances to the nearest center.
        n_iter_: the number of iterations.

    Reference: Park and Jun (2009), Expert Systems with Applications 36.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means++",
        max_iter: int = 300,
        random_state: Seed = 0,
    ):
        self.n_clusters, self.init, self.max_iter = n_clusters, init, max_iter
        self.random_state = random_state

    def fit(self, x: Any, y: Any = None) -> KMedoids:
        """Finds the centers of rows, ``[n, d]``; y is ignored."""
        x = self._rows(x)
        at = sharers(x)
        centers = first(x, self.n_clusters, self.init, self.random_state, euclidean)
        places = np.full(self.n_clusters, -1)
        for done in range(1, self.max_iter + 1):
            labels, _ = nearest(x.block, centers, euclidean)
            before, self.n_iter_ = places, done
            centers, places = _medoids(x, labels, centers, places, at)
            if (places == before).all():
                break
        labels, total = nearest(x.block, centers, euclidean)
        self.cluster_centers_, self.labels_ = whole(centers, x), like_rows(labels, x)
        self.medoid_indices_, self.inertia_ = places, float(at.reduce(total, "sum"))
        return self

    def predict(self, x: Any) -> Array:
        """Returns the index of the nearest center of each row. Moves two numbers."""
        x = self._more_rows(x)
        return like_rows(nearest(x.block, self.cluster_centers_.block, euclidean)[0], x)


def _medoids(
    x: Array, labels: jax.Array, centers: jax.Array, places: np.ndarray, at: World
) -> tuple[jax.Array, np.ndarray]:
    """The best rows of the groups, and their numbers; a center without rows stays in place."""
    costs = jnp.zeros(len(x.block), x.dtype)
    for _, others in passing_by(like_rows(_with_labels(x.block, labels), x)):
        costs = costs + _to_own_group(x.block, labels, others) if len(others) else costs
    own, costs = _best(costs, labels, len(centers))
    all_costs = np.asarray(at.gather(costs[None], (1,) * at.nodes))
    owner = all_costs.argmin(0)  # among equals the row of the first node
    begin = x.layout.begins[at.node] if x.counts else 0
    numbers = at.numbers(np.asarray(own) + begin)[owner, np.arange(len(centers))]
    found = np.isfinite(all_costs.min(0))
    mine = jnp.asarray((owner == at.node) & found)[:, None]
    rows = x.block[own] if len(x.block) else jnp.zeros_like(centers)
    rows = at.reduce(jnp.where(mine, rows, 0), "sum")
    return jnp.where(jnp.asarray(found)[:, None], rows, centers), np.where(found, numbers, places)


def _with_labels(block: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.concatenate([block, labels[:, None].astype(block.dtype)], 1)


@jax.jit
def _to_own_group(block: jax.Array, labels: jax.Array, others: jax.Array) -> jax.Array:
    """The sum of each row's distances to those other rows that are in its group."""
    rows, theirs = others[:, :-1], others[:, -1]

    def one(both: tuple[jax.Array, jax.Array]) -> jax.Array:
        own, label = both
        return jnp.sum(jnp.where(theirs == label, jnp.sqrt(squares(own[None], rows)[0]), 0))

    return jax.lax.map(one, (block, labels), batch_size=max(1, AT_A_TIME // len(rows)))


def _best(costs: jax.Array, labels: jax.Array, groups: int) -> tuple[jax.Array, jax.Array]:
    """The first row with the least cost in each group, and the cost; without rows, 0 and inf."""
    if not len(costs):
        return jnp.zeros(groups, int), jnp.full(groups, jnp.inf, costs.dtype)
    table = jnp.where(labels[:, None] == jnp.arange(groups), costs[:, None], jnp.inf)
    return jnp.argmin(table, 0), jnp.min(table, 0)
