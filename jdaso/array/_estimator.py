"""The base of estimators: scikit-learn's interface, without scikit-learn."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._array import Array, as_array, of_one_world
from ._layout import ArrayLayout
from ._move import laid, resplit
from ._reduce import sharers, type_of_means
from ._unique import unique_values


class NotFittedError(ValueError, AttributeError):
    """An estimator is used before `fit`; has the same bases as scikit-learn's error."""


class Estimator:
    """An estimator: arguments are kept under their names, results get names that end in ``_``.

    All nodes call the methods together. Rows are split along axis 0, or whole on each node.
    """

    _kind: ClassVar[str] = "transformer"
    """The estimator's kind, in scikit-learn's words."""

    n_features_in_: int

    @classmethod
    def _names(cls) -> list[str]:
        return sorted(name for name in inspect.signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the arguments by name; `deep` makes no difference, since none is an estimator."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Any:
        """Sets arguments by name.

        Raises:
            ValueError: there is no such argument.
        """
        for name, value in params.items():
            if name not in self._names():
                raise ValueError(
                    f"Invalid parameter {name!r} for {type(self).__name__}. It has {self._names()}."
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        default = {k: one.default for k, one in inspect.signature(type(self)).parameters.items()}
        given = self.get_params().items()
        changed = [f"{name}={one!r}" for name, one in given if repr(one) != repr(default[name])]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """Describes the estimator to scikit-learn; only scikit-learn calls this."""
        from sklearn import utils

        parts = {
            "transformer": utils.TransformerTags(preserves_dtype=["float64", "float32"]),
            "classifier": utils.ClassifierTags(),
            "regressor": utils.RegressorTags(),
        }
        kinds = {self._kind, "transformer"} if hasattr(self, "transform") else {self._kind}
        own = {f"{name}_tags": parts[name] for name in parts if name in kinds}
        return utils.Tags(
            estimator_type=self._kind,
            target_tags=utils.TargetTags(required=self._kind in ("classifier", "regressor")),
            **{"transformer_tags": None, "regressor_tags": None, "classifier_tags": None, **own},
        )

    def _rows(self, x: Any) -> Array:
        """Rows to fit; all later rows must have the same number of columns."""
        found = rows_of(x)
        self.n_features_in_ = found.shape[1]
        return found

    def _more_rows(self, x: Any) -> Array:
        """Rows for a fitted estimator."""
        self._require_fitted()
        found = rows_of(x)
        if found.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {found.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )
        return found

    def _require_fitted(self) -> None:
        if not hasattr(self, "n_features_in_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet. Call fit first.")


def rows_of(x: Any) -> Array:
    """Returns rows of finite floats, ``[n, d]``, split along axis 0 or whole on each node.

    Moves one reduction of two numbers, by which all nodes find the same errors; moves split columns
    as `resplit` does.

    Raises:
        ValueError: the array does not have two axes, has no rows or no columns, or has numbers that
            are complex or not finite.
        TypeError: the array is sparse.
    """
    found = _numbers(x)
    if found.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {found.ndim}D array instead, of the shape {found.shape}. "
            "Reshape your data: rows are samples, columns are features."
        )
    for count, what in zip(found.shape, ("sample(s)", "feature(s)"), strict=True):
        if not count:
            raise ValueError(
                f"Found array with 0 {what} (shape={found.shape}) while a minimum of 1 is required."
            )
    found = resplit(found, 0) if found.split == 1 else found
    _check_finite(found, "X")
    return found


def _numbers(x: Any) -> Array:
    if not isinstance(x, Array | jax.Array):
        if hasattr(x, "toarray"):
            raise TypeError("Sparse data was passed, but dense data is required. Use x.toarray().")
        x = np.asarray(x)
        x = x.astype(float) if x.dtype.kind in "OUSiu" else x
    found = as_array(x)
    if jnp.issubdtype(found.dtype, jnp.complexfloating):
        raise ValueError(f"Complex data not supported: got {found.dtype}. Take real and imag.")
    return Array(found.block.astype(type_of_means(found.dtype)), found.layout, found.world)


def _check_finite(x: Array, name: str) -> None:
    if isinstance(x.block, Tracer):
        return
    wrong = jnp.stack([jnp.isnan(x.block).any(), jnp.isinf(x.block).any()]).astype(jnp.int32)
    nan, infinite = np.asarray(sharers(x).reduce(wrong, "max"))
    if nan or infinite:
        largest = f"{jnp.finfo(x.dtype).max:.3g}"
        what = "NaN" if nan else f"infinity, or a number above {largest}, the largest {x.dtype}"
        raise ValueError(f"Input {name} contains {what}. Give finite numbers, or leave rows out.")


def targets_of(y: Any, x: Array) -> Array:
    """Returns the numbers that belong to rows, ``[n]``, in the layout of the rows.

    Raises:
        ValueError: the numbers are missing, not one for each row, or not finite.
    """
    return _beside(_numbers(_given(y)), x)


def _given(y: Any) -> Any:
    if y is None:
        raise ValueError("fit requires y to be passed, but the target y is None.")
    return y


def _beside(y: Array, x: Array) -> Array:
    if y.shape != x.shape[:1]:
        raise ValueError(f"y should be a 1d array of {x.shape[0]} numbers, got shape {y.shape}.")
    if jnp.issubdtype(y.dtype, jnp.floating):
        _check_finite(y, "y")
    _, y = of_one_world(x, y)
    return laid(y, ArrayLayout(y.shape, x.split, x.counts))


def classes_of(y: Any, x: Array) -> tuple[np.ndarray, Array]:
    """Returns the different labels, on the host, and the number of each row's label among them.

    Args:
        y: labels ``[n]``: an `Array`, or anything NumPy takes, words included, the same on all
            nodes.
        x: the rows.

    Moves what `unique_values` does if y is split.
    """
    if isinstance(_given(y), Array | jax.Array):
        y = _beside(as_array(y), x)
        classes = np.asarray(resplit(unique_values(y), None).block)
        codes = jnp.searchsorted(jnp.asarray(classes), y.block)
        return _checked(classes), Array(codes, y.layout, y.world)
    labels = np.asarray(y)
    if labels.dtype.kind == "f":
        _beside(as_array(labels), x)
    classes, codes = np.unique(labels, return_inverse=True)
    return _checked(classes), _beside(as_array(codes.reshape(labels.shape)), x)


def _checked(classes: np.ndarray) -> np.ndarray:
    if classes.dtype.kind == "f" and (classes != np.round(classes)).any():
        raise ValueError("Unknown label type: continuous. Labels are whole numbers or words.")
    return classes


def labelled(codes: Array, classes: np.ndarray) -> Any:
    """Returns labels by their numbers, in the layout of the rows.

    Words, and numbers that JAX cannot hold, are returned by NumPy, of all rows on every node.
    """
    if classes.dtype.kind in "OUS" or (np.asarray(jnp.asarray(classes)) != classes).any():
        return classes[np.asarray(codes)]
    return Array(jnp.asarray(classes)[codes.block], codes.layout, codes.world)


def like_rows(block: jax.Array, x: Array) -> Array:
    """Returns an array from the rows that each node has made for its rows of another array."""
    return Array(block, ArrayLayout((x.shape[0], *block.shape[1:]), x.split, x.counts), x.world)


def whole(block: jax.Array, x: Array) -> Array:
    """Returns an array that each node has made whole, on the nodes of another array."""
    return Array(block, ArrayLayout(block.shape), x.world)
