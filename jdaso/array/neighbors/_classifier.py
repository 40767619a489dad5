"""Classes by the nearest rows, found while all nodes' rows pass by."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._array import Array
from .._classifier import Classifier
from .._distances import AT_A_TIME, passing_by, squares
from .._estimator import classes_of, like_rows


class KNeighborsClassifier(Classifier):
    """The most frequent class of the nearest rows, like `sklearn.neighbors.KNeighborsClassifier`.

    `fit` keeps the rows where they are. `predict` passes the blocks of these rows from node to
    node, n (d + 1) (P - 1) / P numbers from each, while each node compares its own rows with the
    block that it has; a node holds two blocks and 2^22 distances at a time.

    Args:
        n_neighbors: k.
        weights: of the votes: ``"uniform"``, or ``"distance"``: the inverse distance.

    Attributes:
        classes_: the different labels, ascending, on the host.
        n_samples_fit_: the number of rows.
    """

    def __init__(self, n_neighbors: int = 5, *, weights: str = "uniform"):
        self.n_neighbors, self.weights = n_neighbors, weights

    def fit(self, x: Any, y: Any) -> KNeighborsClassifier:
        """Keeps the rows.

        Args:
            x: rows ``[n, d]``.
            y: their labels ``[n]``.
        """
        if self.weights not in ("uniform", "distance"):
            raise ValueError(f"weights must be uniform or distance, got {self.weights!r}.")
        self._fitted = self._rows(x)
        self.classes_, self._codes = classes_of(y, self._fitted)
        self.n_samples_fit_ = self._fitted.shape[0]
        return self

    def kneighbors(self, x: Any, n_neighbors: int | None = None) -> tuple[Array, Array]:
        """Returns distances to the nearest rows, ascending, and their numbers, each ``[n, k]``."""
        count = self.n_neighbors if n_neighbors is None else n_neighbors
        distances, places, _ = self._nearest(x, count)
        return distances, places

    def _nearest(self, x: Any, count: int) -> tuple[Array, Array, Array]:
        """Distances to the nearest rows, their numbers, and the numbers of their labels."""
        x = self._more_rows(x)
        if not 1 <= count <= self.n_samples_fit_:
            raise ValueError(
                f"Expected n_neighbors <= n_samples_fit, but n_neighbors = {count}, n_samples_fit "
                f"= {self.n_samples_fit_}, n_samples = {x.shape[0]}. At least 1 is needed, too."
            )
        block = x.block.astype(self._fitted.dtype)
        nothing = jnp.zeros((len(block), count), int)
        last = jnp.full(nothing.shape, jnp.iinfo(nothing.dtype).max)
        best = _Best(jnp.full(nothing.shape, jnp.inf, block.dtype), last, nothing)
        codes = self._codes.block[:, None].astype(block.dtype)
        fitted = jnp.concatenate([self._fitted.block, codes], 1)
        for first, rows in passing_by(like_rows(fitted, self._fitted)):
            best = _nearer(best, block, rows, first) if len(rows) else best
        distances, places, codes = best
        return like_rows(jnp.sqrt(distances), x), like_rows(places, x), like_rows(codes, x)

    def predict_proba(self, x: Any) -> Array:
        """Returns the share of votes of each class, ``[n, classes]``."""
        distances, _, codes = self._nearest(x, self.n_neighbors)
        votes = self._votes(distances.block)
        rows = jnp.arange(len(votes))[:, None]
        shares = jnp.zeros((len(votes), len(self.classes_)), votes.dtype)
        shares = shares.at[rows, codes.block].add(votes)
        return like_rows(shares / jnp.sum(shares, 1, keepdims=True), distances)

    def _votes(self, distances: jax.Array) -> jax.Array:
        if self.weights == "uniform":
            return jnp.ones_like(distances)
        same = distances == 0  # equal rows have all the votes
        inverse = 1 / jnp.where(same, 1, distances)
        return jnp.where(same.any(1, keepdims=True), same, inverse)


class _Best(NamedTuple):
    """The nearest rows so far, ``[n, k]`` each: squared distances, numbers, numbers of labels."""

    distances: jax.Array
    places: jax.Array
    codes: jax.Array


@jax.jit
def _nearer(best: _Best, block: jax.Array, rows: jax.Array, first: Any) -> _Best:
    """Takes one more block into account; of equal distances the first rows stay.

    Blocks arrive in another order on each node, so the rows' numbers decide.
    """
    count = best.distances.shape[1]
    rows, codes = rows[:, :-1], rows[:, -1].astype(int)

    def one(each: tuple[jax.Array, _Best]) -> _Best:
        own, before = each
        found, place = jax.lax.top_k(-squares(own[None], rows)[0], min(count, len(rows)))
        new = _Best(-found, place + first, codes[place])
        both = [jnp.concatenate(two) for two in zip(before, new, strict=True)]
        return _Best(*(column[:count] for column in jax.lax.sort(both, num_keys=2)))

    return jax.lax.map(one, (block, best), batch_size=max(1, AT_A_TIME // len(rows)))
