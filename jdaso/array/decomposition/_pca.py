"""Principal components, from the triangular factor of the centered rows."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._array import Array
from .._estimator import Estimator, like_rows, rows_of, whole
from .._moments import mean as mean_of
from .._moments import moments
from .._reduce import agreed, sharers
from ..linalg._tall import triangle


class PCA(Estimator):
    """Principal component analysis, like `sklearn.decomposition.PCA`.

    The rows' mean is subtracted, and the singular values and right vectors of the remainder come
    from its triangular factor R, ``[min(n, d), d]``. `fit` moves two numbers of each column and R
    from each node; `transform` two numbers, to check the rows. No node holds the rows of another.

    Args:
        n_components: their number; a share in (0, 1): as many as explain that share of the
            variance; None: min(n, d).
        whiten: whether to divide by the standard deviations.
        svd_solver: ``"full"``: R by QR factors of the blocks (TSQR), which loses no digits;
            ``"covariance_eigh"``: from the sums of products, one reduction of d² numbers, faster
            for many rows, but singular values below the root of the precision are lost;
            ``"auto"``: ``"full"``.

    Attributes:
        components_: ``[k, d]``, the same on all nodes, like all below; the largest coefficient of
            each is positive.
        explained_variance_: ``[k]``.
        explained_variance_ratio_: ``[k]``.
        singular_values_: ``[k]``.
        mean_: ``[d]``.
        n_components_: k.
        n_samples_: n.
        noise_variance_: the mean variance of the components left out.

    Reference: Tipping and Bishop (1999), Journal of the Royal Statistical Society B 61.
    """

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        whiten: bool = False,
        svd_solver: str = "auto",
    ):
        self.n_components, self.whiten, self.svd_solver = n_components, whiten, svd_solver

    def fit(self, x: Any, y: Any = None) -> PCA:
        """Finds the components of rows, ``[n, d]``; y is ignored."""
        return self._absorbed(x, first=True)

    def partial_fit(self, x: Any, y: Any = None) -> PCA:
        """Takes more rows into account, exactly: one part at a time of data larger than memory.

        The factor of all rows is that of the old factor, the factor of the new rows, and one row
        for the distance between both means.
        """
        return self._absorbed(x, first=not hasattr(self, "n_samples_"))

    def _absorbed(self, x: Any, *, first: bool) -> PCA:
        x = rows_of(x) if first else self._more_rows(x)
        mean, _, number = moments(x, (0,))
        mean = mean[0]
        factor = self._factor(Array(x.block - mean, x.layout, x.world))
        if not first:
            seen, old = self.n_samples_, self.mean_.block
            between = (mean - old) * np.sqrt(seen * number / (seen + number)).astype(mean.dtype)
            factor = jnp.linalg.qr(
                jnp.concatenate([self._triangle, factor, between[None]]), mode="r"
            )
            mean = old + (mean - old) * (number / (seen + number))
            number += seen
        singular, axes, mean = agreed(sharers(x), *_axes(factor), mean)
        self._keep(x, number, singular, axes)  # raises before anything is kept
        self._triangle, self.n_samples_, self.mean_ = factor, number, whole(mean, x)
        self.n_features_in_ = x.shape[1]
        return self

    def _factor(self, centered: Array) -> jax.Array:
        if self.svd_solver in ("auto", "full"):
            return triangle(centered)
        if self.svd_solver != "covariance_eigh":
            solvers = "auto, full, covariance_eigh"
            raise ValueError(f"svd_solver must be one of {solvers}, got {self.svd_solver!r}.")
        products = sharers(centered).reduce(_times(centered.block.T, centered.block), "sum")
        values, vectors = jnp.linalg.eigh(products)
        return jnp.sqrt(jnp.maximum(values, 0))[:, None] * vectors.T

    def _keep(self, x: Array, rows: int, singular: jax.Array, axes: jax.Array) -> None:
        """Keeps the requested components of this many rows."""
        most = min(rows, x.shape[1])
        singular, axes = singular[:most], axes[:most]
        # Summed exactly, since all nodes must keep the same number.
        squares = np.asarray(singular, float) ** 2
        ratio = squares / max(math.fsum(squares.tolist()), np.finfo(float).tiny)
        kept = self._number(ratio, most)
        variance = jnp.asarray(squares / max(rows - 1, 1), singular.dtype)
        ratio = jnp.asarray(ratio, singular.dtype)
        self.n_components_ = kept
        self.components_ = whole(axes[:kept], x)
        self.singular_values_ = whole(singular[:kept], x)
        self.explained_variance_ = whole(variance[:kept], x)
        self.explained_variance_ratio_ = whole(ratio[:kept], x)
        self.noise_variance_ = float(jnp.mean(variance[kept:])) if kept < most else 0.0

    def _number(self, ratio: np.ndarray, most: int) -> int:
        wanted = self.n_components
        if wanted is None:
            return most
        if isinstance(wanted, float) and 0 < wanted < 1:
            sums = np.cumsum(ratio.astype(float))
            return min(int(np.searchsorted(sums, wanted, side="right")) + 1, most)
        if isinstance(wanted, str | float) or not 1 <= wanted <= most:
            raise ValueError(
                f"n_components={wanted!r} must be between 1 and min(n_samples, n_features)={most}, "
                "a share between 0 and 1, or None."
            )
        return int(wanted)

    def _scale(self) -> jax.Array:
        """The divisors of components: 1 without whitening."""
        variance = self.explained_variance_.block
        least = jnp.finfo(variance.dtype).eps
        return jnp.maximum(jnp.sqrt(variance), least) if self.whiten else jnp.ones_like(variance)

    def transform(self, x: Any) -> Array:
        """Returns the coordinates of rows, ``[n, k]``, in the layout of the rows."""
        x = self._more_rows(x)
        axes = self.components_.block
        return like_rows(_times(x.block - self.mean_.block, axes.T) / self._scale(), x)

    def inverse_transform(self, x: Any) -> Array:
        """Returns the rows with these coordinates, ``[n, k]`` -> ``[n, d]``."""
        self._require_fitted()
        x = rows_of(x)
        if x.shape[1] != self.n_components_:
            raise ValueError(
                f"X has {x.shape[1]} coordinates, but this PCA has {self.n_components_} components."
            )
        rows = _times(x.block * self._scale(), self.components_.block) + self.mean_.block
        return like_rows(rows, x)

    def score_samples(self, x: Any) -> Array:
        """Returns the logarithm of the probability density of each row, ``[n]``.

        Moves two numbers from each node, as each check of rows does.

        The density is that of the normal distribution with the mean, the variances along the
        components, and the noise's variance along all other directions (Tipping and Bishop, eq. 3).
        `whiten` does not change it.

        Raises:
            ValueError: a direction has no variance, and rows no density.
        """
        x = self._more_rows(x)
        axes, variance = self.components_.block, self.explained_variance_.block
        others, noise = axes.shape[1] - axes.shape[0], self.noise_variance_
        if float(jnp.min(variance)) <= 0 or (others and noise <= 0):
            raise ValueError(
                f"The rows vary along fewer than {axes.shape[1]} directions and have no density. "
                "Give fewer n_components, or more rows than columns."
            )
        volume = float(jnp.sum(jnp.log(variance)))
        volume += axes.shape[1] * math.log(2 * math.pi)
        volume += others * math.log(noise) if others else 0.0
        centered = x.block - self.mean_.block
        along = _times(centered, axes.T)
        distance = jnp.sum(along**2 / variance, 1)
        if others:
            distance += jnp.sum((centered - _times(along, axes)) ** 2, 1) / noise
        return like_rows(-0.5 * (distance + volume), x)

    def score(self, x: Any, y: Any = None) -> float:
        """Returns the mean of `score_samples`; y is ignored. Moves two numbers more."""
        return float(mean_of(self.score_samples(x)))

    def fit_transform(self, x: Any, y: Any = None) -> Array:
        """Finds the components and returns the coordinates."""
        return self.fit(x).transform(x)


def _times(x: jax.Array, y: jax.Array) -> jax.Array:
    """A product in full precision, also on GPUs."""
    return jnp.matmul(x, y, precision="highest")


@jax.jit
def _axes(factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Singular values and right vectors, the largest coefficient of each positive."""
    _, singular, axes = jnp.linalg.svd(factor, full_matrices=False)
    largest = jnp.take_along_axis(axes, jnp.argmax(jnp.abs(axes), 1)[:, None], 1)
    return singular, axes * jnp.where(largest < 0, -1, 1)
