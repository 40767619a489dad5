"""Spectral clustering: k-means of the leading eigenvectors of a graph."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .._array import Array
from .._distances import kernel
from .._estimator import like_rows, whole
from .._layout import ArrayLayout
from .._move import laid, resplit
from .._products import matmul
from .._reduce import agreed, sharers
from ..linalg._krylov import drawn, largest
from ._groups import Groups, Seed, seed_of
from ._kmeans import KMeans

MOST_VECTORS = 300
"""Most vectors of a Lanczos basis, unless 20 times the clusters are more."""


class SpectralClustering(Groups):
    """Connected groups of any form, like `sklearn.cluster.SpectralClustering`.

    The rows are the vertices of a graph, with edges ``w = exp(-gamma |x - y|²)``. The eigenvectors
    of the largest eigenvalues of ``D^-½ W D^-½``, D the sums of W's rows, are found by Lanczos,
    divided by the root of D, and k-means groups their rows.

    W is split along its rows: n² / P numbers on each node, 4 n² / P while `fit` runs. `fit` passes
    the blocks of rows from node to node once; each step of Lanczos moves the new vectors, n k
    numbers, to all nodes. A graph of at most 300 (or 20 k) vertices moves to all nodes instead,
    which find its eigenvectors.

    Args:
        n_clusters: k.
        gamma: see above.
        affinity: ``"rbf"``, or ``"precomputed"``: x is W itself, ``[n, n]``, symmetric.
        eigen_tol: the residual of an eigenvector, as a share of the largest eigenvalue.
        n_init: the number of runs of k-means.
        random_state: a seed for the first vectors and centers.

    Attributes:
        affinity_matrix_: W ``[n, n]``, split along its rows.
        labels_: the group of each row, in the layout of the rows.

    Reference: Shi and Malik (2000), IEEE Transactions on Pattern Analysis and Machine Intelligence
    22; von Luxburg (2007), Statistics and Computing 17.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        gamma: float = 1.0,
        affinity: str = "rbf",
        eigen_tol: float = 1e-5,
        n_init: int = 10,
        random_state: Seed = 0,
    ):
        self.n_clusters, self.gamma, self.affinity = n_clusters, gamma, affinity
        self.eigen_tol, self.n_init, self.random_state = eigen_tol, n_init, random_state

    def fit(self, x: Any, y: Any = None) -> SpectralClustering:
        """Finds the groups of rows, ``[n, d]``; y is ignored."""
        x = self._rows(x)
        self.affinity_matrix_ = self._affinity(x)
        seed = seed_of(self.random_state, x)
        embedded = embedding(self.affinity_matrix_, self.n_clusters, self.eigen_tol, seed)
        model = KMeans(self.n_clusters, random_state=seed, n_init=self.n_init)
        self.labels_ = model.fit(embedded).labels_
        return self

    def _affinity(self, x: Array) -> Array:
        if self.affinity == "rbf":
            if not self.gamma >= 0:
                raise ValueError(f"gamma must be at least 0, got {self.gamma}.")
            return kernel(x, None, self.gamma)
        if self.affinity != "precomputed" or x.shape[0] != x.shape[1]:
            raise ValueError(
                "affinity must be 'rbf', or 'precomputed' with a square matrix; got "
                f"{self.affinity!r} and the shape {x.shape}."
            )
        return x


def embedding(affinity: Array, count: int, tol: float, seed: int) -> Array:
    """The rows' places in the space of the leading eigenvectors, ``[n, count]``."""
    begin = affinity.layout.begins[affinity.world.node] if affinity.counts else 0
    graph, sums = _without_loops(affinity.block, begin)
    own = 1 / jnp.sqrt(jnp.where(sums > 0, sums, 1))
    of_all = resplit(like_rows(own, affinity), None).block
    scaled = Array(own[:, None] * graph * of_all, affinity.layout, affinity.world)

    def apply(vectors: Array) -> Array:
        return matmul(scaled, resplit(vectors, None))

    most = max(MOST_VECTORS, 20 * count)
    if affinity.shape[0] <= most:  # Lanczos would find all eigenvectors
        every = jnp.linalg.eigh(resplit(scaled, None).block)[1]
        (every,) = agreed(sharers(affinity), every[:, ::-1][:, :count])
        block = laid(
            whole(every, affinity), ArrayLayout(every.shape, affinity.split, affinity.counts)
        ).block
    else:
        start = drawn(seed, affinity, count)
        block = largest(apply, start, count, tol=tol, most=most)[1].block
    return like_rows(own[:, None] * block, affinity)


@jax.jit
def _without_loops(block: jax.Array, begin: Any) -> tuple[jax.Array, jax.Array]:
    """A graph without edges from vertices to themselves, and the sums of its rows."""
    place = begin + jnp.arange(len(block))
    graph = jnp.where(place[:, None] == jnp.arange(block.shape[1]), 0, block)
    return graph, jnp.sum(graph, 1)
