"""Classes by normal distributions of their columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._array import Array
from .._classifier import Classifier
from .._estimator import classes_of, like_rows, rows_of, whole
from .._reduce import sharers
from .._world import World

FEW = 64
"""Classes whose rows are added by a product, in n numbers for each; more take no memory."""


class GaussianNB(Classifier):
    """Naive Bayes with normal distributions, like `sklearn.naive_bayes.GaussianNB`.

    `fit` moves the number, the mean and the spread of the rows of each class, (2 d + 1) numbers for
    each from each node; `predict` two numbers, to check the rows.

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
        classes, codes = classes_of(y, x)
        self._require_priors(classes)
        self.classes_ = classes
        self._seen = _joined(sharers(x), x.block, codes.block, len(self.classes_))
        return self._keep(x)

    def partial_fit(self, x: Any, y: Any, classes: Any = None) -> GaussianNB:
        """Takes more rows into account: one part at a time of data larger than memory.

        The result is that of `fit` with all rows, but for rounding. Moves what `fit` moves.

        Args:
            x: rows ``[n, d]``.
            y: their labels ``[n]``.
            classes: all labels that occur; of the first call only, for which they are required.

        Raises:
            ValueError: the first call has no classes, or a label is none of them.
        """
        first = not hasattr(self, "_seen")
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        x = rows_of(x) if first else self._more_rows(x)
        known = np.unique(np.asarray(classes)) if first else self.classes_
        if classes is not None and not np.array_equal(np.unique(np.asarray(classes)), known):
            raise ValueError(f"classes={classes} are not those of the first call, {known}.")
        found, codes = classes_of(y, x)
        if not np.isin(found, known).all():
            raise ValueError(
                f"y has the labels {found}, the classes are {known}. Give all of them."
            )
        self._require_priors(known)
        self.classes_, self.n_features_in_ = known, x.shape[1]
        places = jnp.asarray(np.searchsorted(known, found))[codes.block]
        new = _joined(sharers(x), x.block, places, len(known))
        self._seen = new if first else _merged(self._seen, new)
        return self._keep(x)

    def _keep(self, x: Array) -> GaussianNB:
        """Keeps what the numbers of all rows so far give; x has their nodes."""
        counts, mean, var = self._seen
        shares = counts / counts.sum()
        total = jnp.asarray(shares, mean.dtype)[:, None]
        overall = jnp.sum(total * mean, 0)
        columns = jnp.sum(total * (var + (mean - overall) ** 2), 0)
        self.class_count_ = counts
        self.epsilon_ = self.var_smoothing * float(jnp.max(columns))
        self.class_prior_ = shares if self.priors is None else np.asarray(self.priors, float)
        self.theta_, self.var_ = whole(mean, x), whole(var + self.epsilon_, x)
        return self

    def _require_priors(self, classes: np.ndarray) -> None:
        """Raises if given priors do not fit; nothing was changed by then."""
        if self.priors is None:
            return
        priors = np.asarray(self.priors, float)
        fits = priors.shape == (len(classes),) and np.isclose(priors.sum(), 1) and priors.min() >= 0
        if not fits:
            raise ValueError(
                f"priors must be {len(classes)} numbers that sum up to 1, got {priors}."
            )

    def predict_joint_log_proba(self, x: Any) -> Array:
        """Returns the logarithms of the joint probabilities, ``[n, k]``."""
        x = self._more_rows(x)
        priors = jnp.log(jnp.asarray(self.class_prior_, x.dtype))
        return like_rows(_joint(x.block, self.theta_.block, self.var_.block, priors), x)

    def predict_log_proba(self, x: Any) -> Array:
        """Returns the logarithms of the probabilities of classes, ``[n, k]``."""
        joint = self.predict_joint_log_proba(x)
        return Array(jax.nn.log_softmax(joint.block, 1), joint.layout, joint.world)

    def predict_proba(self, x: Any) -> Array:
        """Returns the probabilities of classes, ``[n, k]``."""
        joint = self.predict_joint_log_proba(x)
        return Array(jax.nn.softmax(joint.block, 1), joint.layout, joint.world)


class _Classes(NamedTuple):
    """The rows of each class: their number ``[k]``, and mean and variance ``[k, d]``."""

    counts: np.ndarray
    mean: jax.Array
    var: jax.Array


def _joined(at: World, block: jax.Array, codes: jax.Array, classes: int) -> _Classes:
    """The rows of all nodes: two messages."""
    own, both = _of_classes(block, codes, classes)
    counts = at.numbers(np.asarray(own))
    share = jnp.asarray(counts / np.maximum(counts.sum(0), 1), block.dtype)[:, :, None]
    means, spreads = jnp.moveaxis(at.gather(both[None], (1,) * at.nodes), 1, 0)
    mean = jnp.sum(share * means, 0)
    var = jnp.sum(share * (spreads + (means - mean) ** 2), 0)
    return _Classes(counts.sum(0), mean, var)


def _merged(first: _Classes, second: _Classes) -> _Classes:
    """The rows of both (Chan, Golub and LeVeque 1983)."""
    counts = first.counts + second.counts
    share = second.counts / np.maximum(counts, 1)
    new = jnp.asarray(share, first.mean.dtype)[:, None]
    between = second.mean - first.mean
    mean = first.mean + new * between
    var = first.var + new * (second.var - first.var) + new * (1 - new) * between**2
    return _Classes(counts, mean, var)


def _of_classes(block: jax.Array, codes: jax.Array, classes: int) -> tuple[jax.Array, jax.Array]:
    """This node's numbers of rows ``[k]``, and their means and mean squares, ``[2, k, d]``."""
    counts = jnp.bincount(codes, length=classes)
    add = _adding(codes, classes, block.dtype)
    divisor = jnp.maximum(counts, 1)[:, None].astype(block.dtype)
    middle = jnp.sum(block, 0) / max(len(block), 1)  # squares of rows near 0 lose no digits
    means = middle + add(block - middle) / divisor
    spreads = add((block - means[codes]) ** 2) / divisor
    return counts, jnp.stack([means, spreads])


def _adding(codes: jax.Array, classes: int, dtype: Any) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that adds the rows of each class, ``[n, d]`` -> ``[k, d]``."""
    if classes > FEW:
        return partial(jax.ops.segment_sum, segment_ids=codes, num_segments=classes)
    chosen = jax.nn.one_hot(codes, classes, dtype=dtype).T
    return lambda rows: jnp.matmul(chosen, rows, precision="highest")


@jax.jit
def _joint(block: jax.Array, theta: jax.Array, var: jax.Array, priors: jax.Array) -> jax.Array:
    def of_class(mean: jax.Array, var: jax.Array) -> jax.Array:
        return -0.5 * jnp.sum(jnp.log(2 * jnp.pi * var) + (block - mean) ** 2 / var, 1)

    return priors + jax.vmap(of_class, out_axes=1)(theta, var)
