"""The interface of a source of samples, and sources in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from .._jax.types import PyTree

_SHOWN = 8
"""Arrays that an error names."""


@runtime_checkable
class Source(Protocol):
    """Samples that can be read in any order, from several threads at once.

    An object with ``__getitem__`` instead of ``rows``, such as a source of grain, a PyTorch or a
    Hugging Face data set, is a source too: its samples, trees of arrays and numbers of equal
    shapes, are stacked. A source of one node's own samples has the node's number as ``own_node``;
    its loader needs ``share=(0, 1)``, and transforms draw other numbers on each node.
    """

    def __len__(self) -> int:
        """N, the number of samples."""
        ...

    def rows(self, indices: np.ndarray) -> PyTree:
        """Returns the samples at `indices`, in that order.

        Args:
            indices: int64, each 0..N-1, possibly repeated.

        Returns:
            A tree of NumPy arrays, each with ``len(indices)`` rows, that the caller may keep and
            change.
        """
        ...


class Arrays:
    """A tree of arrays in memory with equal numbers of rows.

    Args:
        tree: NumPy arrays, or anything that `numpy.asarray` accepts, lists included.

    Raises:
        ValueError: the arrays have no rows, or different numbers of them.
        TypeError: an array is one of `jdaso.array`, whose rows may be on other nodes.

    Example:
        >>> import numpy as np
        >>> from jdaso.data import Arrays
        >>> Arrays({"x": np.arange(6).reshape(3, 2)}).rows(np.array([2, 0]))["x"].tolist()
        [[4, 5], [0, 1]]
    """

    def __init__(self, tree: PyTree):
        is_array = lambda x: isinstance(x, list) or hasattr(x, "__array__")  # noqa: E731
        self.tree = jax.tree.map(_on_host, tree, is_leaf=is_array)
        self._length = common_length({_name(p): x for p, x in jax.tree.leaves_with_path(self.tree)})

    def __len__(self) -> int:
        return self._length

    def rows(self, indices: np.ndarray) -> PyTree:
        """Returns a copy of the samples at `indices`, in that order."""
        return jax.tree.map(lambda x: x[indices], self.tree)


class Items:
    """A source made from an object with ``__len__`` and ``__getitem__``."""

    def __init__(self, items: Any):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def rows(self, indices: np.ndarray) -> PyTree:
        """Returns the samples at `indices`, stacked."""
        return stacked([self.items[int(i)] for i in indices])


def as_source(source: Any) -> Source:
    """Makes a source from the argument of `Loader`.

    Raises:
        TypeError: the argument cannot be a source.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, Mapping):
        return Arrays(dict(source))
    if isinstance(source, tuple) or hasattr(source, "__array__"):
        return Arrays(source)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return Items(source)
    raise TypeError(
        f"{type(source).__name__} is not a source of samples. Give jdaso.data.Npy, HDF5, "
        "a dict or tuple of arrays, or an object with __len__ and __getitem__."
    )


def stacked(samples: list[PyTree]) -> PyTree:
    """Stacks samples into one tree with a leading axis."""
    return jax.tree.map(lambda *of_samples: np.stack(of_samples), *samples)


def common_length(arrays: dict[str, Any]) -> int:
    """Returns the number of rows that all arrays have.

    Raises:
        ValueError: the arrays have no rows, or different numbers of them.
    """
    lengths = {name: len(x) if getattr(x, "shape", (1,)) else 0 for name, x in arrays.items()}
    found = set(lengths.values())
    if len(found) != 1 or found == {0}:
        said = ", ".join(f"{name or 'the array'}: {n}" for name, n in [*lengths.items()][:_SHOWN])
        said += f" and {len(lengths) - _SHOWN} more" if len(lengths) > _SHOWN else ""
        raise ValueError(
            "Samples are rows of arrays, which must all have equally many, at least one, got "
            f"{said or 'no array'}."
        )
    return found.pop()


def _on_host(x: Any) -> np.ndarray:
    if hasattr(x, "__array__") and hasattr(x, "world"):
        raise TypeError(
            "An array of jdaso.array is no source of samples: its rows may be on other nodes. Give "
            "Loader(jdaso.array.Rows(x), ..., share=(0, 1)), and the batch size of a node."
        )
    return np.asarray(x)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
