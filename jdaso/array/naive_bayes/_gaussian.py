"""Classes by normal distributions of their columns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._array import Array
from .._classifier import Classifier
from .._estimator import classes_of, like_rows, whole
from .._reduce import sharers


class GaussianNB(Classifier):
    """Naive Bayes with normal distributions, like `sklearn.naive_bayes.GaussianNB`.

    `fit` moves the number, the mean and the spread of the rows of each class, (2 d + 1) numbers for
    each from each node; `predict` moves nothing.

    Args:
        priors: the probabilities of the classes; None: their shares of the rows.
        var_smoothing: the share of the largest variance of a column that is added to all.

    Attributes:
        classes_: the different labels, ascending, on the host.
        class_count_: the numbers of rows ``[k]``, on the host.
        class_prior_: the probabilities ``[k]``, on the host.
        theta_: means ``[k, d]``, the same on all nodes; so are the variances.
        var_: variances ``[k, d]``.
        epsilon_: the variance that was added.
    """

    def __init__(self, *, priors: Any = None, var_smoothing: float = 1e-9):
        self.priors, self.var_smoothing = priors, var_smoothing

    def fit(self, x: Any, y: Any) -> GaussianNB:
        """Finds means and variances.

        Args:
            x: rows ``[n, d]``.
            y: their labels ``[n]``.
        """
        x = self._rows(x)
        self.classes_, codes = classes_of(y, x)
        at = sharers(x)
        counts, both = _of_classes(x.block, codes.block, len(self.classes_))
        counts = at.numbers(np.asarray(counts))
        share = jnp.asarray(counts / counts.sum(0), x.dtype)[:, :, None]
        means, spreads = jnp.moveaxis(at.gather(both[None], (1,) * at.nodes), 1, 0)
        mean = jnp.sum(share * means, 0)
        var = jnp.sum(share * (spreads + (means - mean) ** 2), 0)
        self.class_count_ = counts.sum(0)
        shares = self.class_count_ / self.class_count_.sum()
        total = jnp.asarray(shares, x.dtype)[:, None]
        overall = jnp.sum(total * mean, 0)
        columns = jnp.sum(total * (var + (mean - overall) ** 2), 0)
        self.epsilon_ = self.var_smoothing * float(jnp.max(columns))
        self.class_prior_ = shares if self.priors is None else self._given_priors()
        self.theta_, self.var_ = whole(mean, x), whole(var + self.epsilon_, x)
        return self

    def _given_priors(self) -> np.ndarray:
        priors = np.asarray(self.priors, float)
        if len(priors) != len(self.classes_) or not np.isclose(priors.sum(), 1) or priors.min() < 0:
            raise ValueError(
                f"priors must be {len(self.classes_)} numbers that sum up to 1, got {priors}."
            )
        return priors

    def predict_joint_log_proba(self, x: Any) -> Array:
        """Returns the logarithms of the joint probabilities, ``[n, k]``."""
        x = self._more_rows(x)
        priors = jnp.asarray(np.log(self.class_prior_), x.dtype)
        return like_rows(_joint(x.block, self.theta_.block, self.var_.block, priors), x)

    def predict_log_proba(self, x: Any) -> Array:
        """Returns the logarithms of the probabilities of classes, ``[n, k]``."""
        joint = self.predict_joint_log_proba(x)
        return Array(jax.nn.log_softmax(joint.block, 1), joint.layout, joint.world)

    def predict_proba(self, x: Any) -> Array:
        """Returns the probabilities of classes, ``[n, k]``."""
        joint = self.predict_joint_log_proba(x)
        return Array(jax.nn.softmax(joint.block, 1), joint.layout, joint.world)


def _of_classes(block: jax.Array, codes: jax.Array, classes: int) -> tuple[jax.Array, jax.Array]:
    """This node's numbers of rows ``[k]``, and their means and mean squares, ``[2, k, d]``."""
    counts = jnp.bincount(codes, length=classes)
    chosen = jax.nn.one_hot(codes, classes, dtype=block.dtype)
    divisor = jnp.maximum(counts, 1)[:, None].astype(block.dtype)
    middle = jnp.sum(block, 0) / max(len(block), 1)  # squares of rows near 0 lose no digits
    means = middle + chosen.T @ (block - middle) / divisor
    spreads = chosen.T @ (block - means[codes]) ** 2 / divisor
    return counts, jnp.stack([means, spreads])


@jax.jit
def _joint(block: jax.Array, theta: jax.Array, var: jax.Array, priors: jax.Array) -> jax.Array:
    def of_class(mean: jax.Array, var: jax.Array) -> jax.Array:
        return -0.5 * jnp.sum(jnp.log(2 * jnp.pi * var) + (block - mean) ** 2 / var, 1)

    return priors + jax.vmap(of_class, out_axes=1)(theta, var)
