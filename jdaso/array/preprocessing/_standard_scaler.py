"""Columns of mean 0 and variance 1."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .._array import Array
from .._estimator import Estimator, whole
from .._moments import moments


class StandardScaler(Estimator):
    """``(x - mean) / std`` of each column, like `sklearn.preprocessing.StandardScaler`.

    `fit` moves two numbers of each column, in one operation; `transform` two numbers, to check the
    rows.

    Args:
        with_mean: whether to subtract the mean.
        with_std: whether to divide by the standard deviation; a constant column by 1.

    Attributes:
        mean_: ``[d]``, the same on all nodes; so are the next two.
        var_: ``[d]``, of n rows, divided by n.
        scale_: ``[d]``, the divisors; None without `with_std`.
        n_samples_seen_: the number of rows.
    """

    def __init__(self, *, with_mean: bool = True, with_std: bool = True):
        self.with_mean, self.with_std = with_mean, with_std

    def fit(self, x: Any, y: Any = None) -> StandardScaler:
        """Finds means and deviations of rows, ``[n, d]``; y is ignored."""
        vars(self).pop("n_samples_seen_", None)
        return self.partial_fit(x)

    def partial_fit(self, x: Any, y: Any = None) -> StandardScaler:
        """Takes more rows into account: one part at a time of data larger than memory."""
        first = not hasattr(self, "n_samples_seen_")
        x = self._rows(x) if first else self._more_rows(x)
        mean, spread, number = moments(x, (0,))
        mean, spread = mean[0], spread[0]
        if not first:
            seen, old = self.n_samples_seen_, self.mean_.block
            spread += self.var_.block * seen + (mean - old) ** 2 * (seen * number / (seen + number))
            mean = old + (mean - old) * (number / (seen + number))
            number += seen
        self.n_samples_seen_, self.mean_ = number, whole(mean, x)
        self.var_ = whole(spread / number, x)
        scale = _divisors(self.var_.block, mean)
        self.scale_ = whole(scale, x) if self.with_std else None
        return self

    def _parts(self) -> tuple[Any, Any]:
        mean = self.mean_.block if self.with_mean else 0
        return mean, 1 if self.scale_ is None else self.scale_.block

    def transform(self, x: Any) -> Array:
        """Returns the standardized rows, in the same layout."""
        x = self._more_rows(x)
        mean, scale = self._parts()
        return Array(_scaled(x.block, mean, scale), x.layout, x.world)

    def inverse_transform(self, x: Any) -> Array:
        """Returns the original rows of standardized ones."""
        x = self._more_rows(x)
        mean, scale = self._parts()
        return Array(x.block * scale + mean, x.layout, x.world)

    def fit_transform(self, x: Any, y: Any = None) -> Array:
        """Finds means and deviations, and returns the standardized rows."""
        return self.fit(x).transform(x)


@jax.jit
def _scaled(block: jax.Array, mean: Any, scale: Any) -> jax.Array:
    return (block - mean) / scale


def _divisors(var: jax.Array, mean: jax.Array) -> jax.Array:
    """Roots of variances; 1 for those within the rounding of the mean: constant columns."""
    rounding = 16 * jnp.finfo(var.dtype).eps * jnp.abs(mean)
    return jnp.where(var <= rounding**2, 1, jnp.sqrt(var))
