"""The common part of classifiers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ._array import Array
from ._estimator import Estimator, classes_of, labelled, like_rows
from ._reduce import REDUCTIONS


class Classifier(Estimator):
    """An estimator of classes, based on `predict_proba`."""

    _kind = "classifier"

    classes_: np.ndarray

    def predict_proba(self, x: Any) -> Array:
        """Returns the probability of each class for each row, ``[n, classes]``."""
        raise NotImplementedError

    def predict(self, x: Any) -> Any:
        """Returns the most probable class of each row, in the layout of the rows.

        Classes that are words are returned as a NumPy array of all rows, on each node.
        """
        likely = self.predict_proba(x)
        codes = like_rows(jnp.argmax(likely.block, 1), likely)
        return labelled(codes, self.classes_)

    def score(self, x: Any, y: Any) -> float:
        """Returns the share of rows whose class is found. Moves one number from each node."""
        likely = self.predict_proba(x)
        known, codes = classes_of(y, likely)
        wanted = np.searchsorted(self.classes_, known).clip(0, len(self.classes_) - 1)
        wanted = np.where(self.classes_[wanted] == known, wanted, -1)
        right = jnp.argmax(likely.block, 1) == jnp.asarray(wanted)[codes.block]
        return int(REDUCTIONS["sum"](like_rows(right, likely), dtype=int)) / likely.shape[0]
