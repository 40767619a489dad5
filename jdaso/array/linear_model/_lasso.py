"""LASSO over nodes: their sums of products, then coordinate descent on each."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._array import Array
from .._estimator import Estimator, like_rows, rows_of, targets_of, whole
from .._moments import mean
from .._reduce import REDUCTIONS, agreed, sharers
from .._varied import varied
from ._descent import Descent, Problem, Stop, descend, gap


class _Sums(NamedTuple):
    """The problem, and the means of x and y that were subtracted."""

    problem: Problem
    center: jax.Array
    level: jax.Array


def _sums(x: Array, y: Array, *, intercept: bool) -> _Sums:
    """Mean products of all rows: two reductions, of d + 1 and of (d + 1)² numbers."""
    at, columns = sharers(x), x.shape[1]
    both = jnp.concatenate([x.block, y.block.astype(x.dtype)[:, None]], 1)
    means = jnp.zeros(columns + 1, both.dtype)
    if intercept:
        means = at.reduce(jnp.sum(both, 0) / x.shape[0], "sum")
        both = both - varied(means, at)
    products = jnp.matmul(both.T, both, precision="highest")
    products = at.reduce(products / x.shape[0], "sum")
    problem = Problem(products[:-1, :-1], products[:-1, -1], products[-1, -1])
    return _Sums(problem, means[:-1], means[-1])


def lasso(
    x: Any,
    y: Any,
    alpha: Any,
    *,
    fit_intercept: bool = True,
    tol: float = 1e-4,
    max_iter: int = 1000,
) -> Array:
    """The weights that make ``|y - x w|² / 2n + alpha |w|₁`` smallest, ``[d]``, on all nodes.

    The function can be part of a `jax.jit` program, and has derivatives with respect to alpha, x
    and y: `jax.grad` of a loss on other rows gives the direction in which to move alpha.

    Args:
        x: rows ``[n, d]``.
        y: targets ``[n]``.
        alpha: the weight of the penalty, a number.
        fit_intercept: whether to subtract the means first.
        tol: the share of ``|y|²`` that the duality gap may have at the end.
        max_iter: the maximum number of sweeps over the weights.

    Moves one reduction of (d + 1)² numbers, and one of d + 1 for the means; the sweeps nothing.
    """
    _require_not_negative(alpha)
    x = rows_of(x)
    sums = _sums(x, targets_of(y, x), intercept=fit_intercept)
    alpha = jnp.asarray(alpha, x.dtype)
    found = descend(sums.problem, alpha, jnp.zeros(x.shape[1], x.dtype), Stop(tol, max_iter))
    return whole(found.weights, x)


def lasso_path(
    x: Any,
    y: Any,
    *,
    eps: float = 1e-3,
    n_alphas: int = 100,
    alphas: Any = None,
    tol: float = 1e-4,
    max_iter: int = 1000,
) -> tuple[Array, Array, Array]:
    """The weights along a path of penalties, like `sklearn.linear_model.lasso_path`.

    Args:
        x: rows ``[n, d]``; no means are subtracted.
        y: targets ``[n]``.
        eps: the smallest alpha, divided by the largest, at which all weights are 0.
        n_alphas: the number of penalties between them, at equal ratios.
        alphas: the penalties themselves, if given.
        tol: as in `lasso`.
        max_iter: as in `lasso`.

    Returns:
        The penalties, descending, ``[p]``; the weights ``[d, p]``; the duality gaps ``[p]``. A
        warning names those of larger gaps than `tol` allows.

    Moves one reduction of (d + 1)² numbers for the whole path: each penalty begins at the weights
    of the previous one.
    """
    _require_not_negative(alphas)
    x = rows_of(x)
    problem = _sums(x, targets_of(y, x), intercept=False).problem
    if alphas is None:
        alphas = _grid(float(jnp.max(jnp.abs(problem.moment))), eps, n_alphas)
    falling = jnp.asarray(-np.sort(-np.asarray(alphas)), x.dtype)
    weights, gaps = agreed(sharers(x), *_path(problem, falling, Stop(tol, max_iter)))
    if left := int(jnp.sum(gaps > tol * problem.square)):
        warnings.warn(
            f"lasso_path did not converge for {left} of {len(falling)} penalties: after {max_iter} "
            "sweeps their duality gaps are above tol. Raise max_iter or tol, or leave out the "
            "smallest penalties.",
            stacklevel=2,
        )
    return whole(falling, x), whole(weights.T, x), whole(gaps, x)


def _require_not_negative(alpha: Any) -> None:
    """Raises `ValueError` if one of the penalties is negative; those that are traced are not read.

    With a negative penalty, larger weights would always be better.
    """
    traced = isinstance(getattr(alpha, "block", alpha), Tracer)
    if alpha is not None and not traced and (np.asarray(alpha) < 0).any():
        raise ValueError(f"alpha must be at least 0, got {alpha}. Give 0 for no penalty.")


def _grid(largest: float, eps: float, count: int) -> np.ndarray:
    """The penalties of a path; scikit-learn's smallest number where the targets have no signal."""
    least = np.finfo(np.float64).resolution
    if largest <= least:
        return np.full(count, least)
    return np.geomspace(largest, largest * eps, count)


@partial(jax.jit, static_argnums=2)
def _path(problem: Problem, alphas: jax.Array, stop: Stop) -> tuple[jax.Array, jax.Array]:
    def one(begin: jax.Array, alpha: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        found = descend(problem, alpha, begin, stop)
        return found.weights, (found.weights, gap(problem, alpha, found.weights))

    return jax.lax.scan(one, jnp.zeros_like(problem.moment), alphas)[1]


@partial(jax.jit, static_argnums=2)
def _solved(problem: Problem, alpha: jax.Array, stop: Stop) -> Descent:
    return descend(problem, alpha, jnp.zeros_like(problem.moment), stop)


class Lasso(Estimator):
    """Linear regression with few nonzero weights, like `sklearn.linear_model.Lasso`.

    `fit` moves two reductions, of d + 1 and of (d + 1)² numbers; each node sweeps over the weights
    by itself, on these sums, which moves nothing. `predict` moves two numbers, to check the rows.

    Args:
        alpha: the weight of the penalty; see `lasso`.
        fit_intercept: whether to find a constant, too.
        max_iter: the maximum number of sweeps over the weights.
        tol: the share of ``|y|²`` that the duality gap may have at the end. In float32 no gap is
            computed to better than about 1e-6 of it.

    Attributes:
        coef_: the weights ``[d]``, the same on all nodes.
        intercept_: the constant.
        n_iter_: the number of sweeps.
        dual_gap_: the duality gap, divided by n.
    """

    _kind = "regressor"

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-4,
    ):
        self.alpha, self.fit_intercept = alpha, fit_intercept
        self.max_iter, self.tol = max_iter, tol

    def fit(self, x: Any, y: Any) -> Lasso:
        """Finds the weights.

        Args:
            x: rows ``[n, d]``.
            y: targets ``[n]``.
        """
        _require_not_negative(self.alpha)
        x = self._rows(x)
        sums = _sums(x, targets_of(y, x), intercept=self.fit_intercept)
        alpha = jnp.asarray(self.alpha, x.dtype)
        found = Descent(
            *agreed(sharers(x), *_solved(sums.problem, alpha, Stop(self.tol, self.max_iter)))
        )
        self.coef_ = whole(found.weights, x)
        (level,) = agreed(sharers(x), sums.level - jnp.sum(sums.center * found.weights))
        self.intercept_ = float(level)
        self.n_iter_, self.dual_gap_ = int(found.sweeps), float(found.gap)
        if found.gap > self.tol * sums.problem.square:
            warnings.warn(
                f"Lasso did not converge: after {self.n_iter_} sweeps the duality gap is "
                f"{self.dual_gap_:.3g}. Raise max_iter, tol or alpha, or standardize the columns.",
                stacklevel=2,
            )
        return self

    def predict(self, x: Any) -> Array:
        """Returns ``x w + intercept``, in the layout of the rows."""
        x = self._more_rows(x)
        products = jnp.matmul(x.block, self.coef_.block, precision="highest")
        return like_rows(products + self.intercept_, x)

    def score(self, x: Any, y: Any) -> float:
        """Returns the coefficient of determination, R²; moves three numbers from each node.

        If all targets are the same: 1 if the predictions are exact, else 0.
        """
        x = self._more_rows(x)
        y = targets_of(y, x)
        error = float(REDUCTIONS["sum"]((y - self.predict(x)) ** 2))
        total = float(REDUCTIONS["sum"]((y - mean(y)) ** 2))
        return 1 - error / total if total else float(not error)
