"""LASSO of known sums of products: coordinate descent, and its derivative. Nothing moves here.

The problem is ``min ½ wᵀG w - cᵀw + ½ s + alpha |w|₁`` with G = XᵀX / n, c = Xᵀy / n, s = yᵀy / n.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Problem(NamedTuple):
    """Mean products: G ``[d, d]``, c ``[d]``, s."""

    gram: jax.Array
    moment: jax.Array
    square: jax.Array


class Stop(NamedTuple):
    """The end of a descent: the largest duality gap, as a share of s, and the maximum of sweeps."""

    tol: float
    most: int


class Descent(NamedTuple):
    """Weights ``[d]``, their duality gap, and the number of sweeps."""

    weights: jax.Array
    gap: jax.Array
    sweeps: jax.Array


def gap(problem: Problem, alpha: Any, weights: jax.Array) -> jax.Array:
    """Returns the duality gap, a bound on the distance from the least value.

    The dual point is the residual, scaled until it is feasible.
    """
    gram, moment, square = problem
    fitted = gram @ weights
    residual = square - 2 * moment @ weights + weights @ fitted
    largest = jnp.max(jnp.abs(moment - fitted))
    scale = jnp.minimum(1, alpha / jnp.maximum(largest, jnp.finfo(gram.dtype).tiny))
    left = alpha * jnp.sum(jnp.abs(weights)) - scale * (square - moment @ weights)
    return residual * (1 + scale**2) / 2 + left


def _sweep(problem: Problem, alpha: Any, weights: jax.Array) -> jax.Array:
    """Sets each weight to its best value while the others stay."""

    def one(j: Any, weights: jax.Array) -> jax.Array:
        row, own = problem.gram[j], problem.gram[j, j]
        pull = problem.moment[j] - row @ weights + own * weights[j]
        best = jnp.sign(pull) * jnp.maximum(jnp.abs(pull) - alpha, 0)
        return weights.at[j].set(jnp.where(own > 0, best / jnp.where(own > 0, own, 1), 0))

    return jax.lax.fori_loop(0, len(weights), one, weights)


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def descend(problem: Problem, alpha: Any, begin: jax.Array, stop: Stop) -> Descent:
    """Returns the weights by cyclic coordinate descent from `begin`.

    The derivative is that of the solution, by the implicit function theorem: weights that are 0
    stay 0, and for the others ``G dw = dc - dG w - dalpha sign(w)``.

    References: Friedman, Hastie and Tibshirani (2010), Journal of Statistical Software 33; Bertrand
    et al. (2020), Implicit differentiation of Lasso-type models, ICML.
    """

    def goes_on(found: Descent) -> jax.Array:
        return (found.sweeps < stop.most) & (found.gap > stop.tol * problem.square)

    def step(found: Descent) -> Descent:
        weights = _sweep(problem, alpha, found.weights)
        return Descent(weights, gap(problem, alpha, weights), found.sweeps + 1)

    zero = jnp.zeros((), problem.gram.dtype)
    return jax.lax.while_loop(goes_on, step, Descent(begin, zero + jnp.inf, zero))


@descend.defjvp
def _derivative(stop: Stop, primals: Any, tangents: Any) -> tuple[Descent, Descent]:
    problem, alpha, begin = primals
    slope, dalpha, _ = tangents
    found = descend(problem, alpha, begin, stop)
    weights = found.weights
    active = weights != 0
    both = active[:, None] & active
    system = jnp.where(both, problem.gram, jnp.eye(len(weights), dtype=weights.dtype))
    pull = slope.moment - slope.gram @ weights - dalpha * jnp.sign(weights)
    change = jnp.linalg.solve(system, jnp.where(active, pull, 0))
    return found, Descent(change, jnp.zeros_like(found.gap), jnp.zeros_like(found.sweeps))
