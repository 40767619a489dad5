"""Cuts a batch into micro-batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from ..._jax.types import PyTree
from .equations import is_key


def _as_array(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else np.asarray(leaf)


def _dtype(leaf: Any) -> Any:
    """Returns the dtype in which JAX takes an array: without x64, float32 for float64."""
    return leaf.dtype if is_key(leaf) else jax.dtypes.canonicalize_dtype(leaf.dtype)


def _is_weak(leaf: Any) -> bool:
    """Returns whether a leaf takes the type of what it meets, as numbers of Python do."""
    return isinstance(leaf, bool | int | float | complex) or getattr(leaf, "weak_type", False)


def _kind(leaf: Any) -> str:
    return f"{_dtype(leaf)}{list(leaf.shape)}"


@dataclasses.dataclass(frozen=True)
class Microbatches:
    """The parts of a batch.

    Leaves are cut along their leading axis. A leaf without axes is the same in all parts; a single
    key of `jax.random.key` is folded with the part's number, so parts draw different numbers.

    Attributes:
        tree: structure of the batch.
        leaves: shapes and dtypes of its leaves.
        sizes: samples in each part; they differ by at most one.
    """

    tree: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, batch: PyTree, number: int) -> Microbatches:
        """Plans the cut of a batch into `number` parts.

        Raises:
            ValueError: the batch cannot be cut into these parts.
        """
        flat, tree = jax.tree.flatten(batch)
        leaves = [_as_array(leaf) for leaf in flat]
        structs = tuple(
            jax.ShapeDtypeStruct(leaf.shape, _dtype(leaf), weak_type=_is_weak(given))
            for leaf, given in zip(leaves, flat, strict=True)
        )
        sizes = {leaf.shape[0] for leaf in structs if leaf.shape}
        if len(sizes) != 1:
            paths = jax.tree.leaves_with_path(batch)
            said = ", ".join(
                f"{jax.tree_util.keystr(path)} {tuple(leaf.shape)}"
                for (path, _), leaf in zip(paths, leaves, strict=True)
            )
            raise ValueError(
                "A batch is cut along the leading axis of its arrays, which must be equally long "
                f"in all of them, got {said or 'no arrays'}. Values shared by all samples must "
                "be scalars; random keys must be made by jax.random.key, one for the batch or "
                "one for each sample."
            )
        (samples,) = sizes
        if not 1 <= number <= samples:
            raise ValueError(
                f"A batch of {samples} samples cannot be cut into num_microbatches={number} parts. "
                "Give at least one sample for each micro-batch."
            )
        size, larger = divmod(samples, number)
        return cls(tree, structs, tuple(size + (k < larger) for k in range(number)))

    @property
    def samples(self) -> int:
        """The number of samples in the whole batch."""
        return sum(self.sizes)

    def weights(self) -> list[float]:
        """Returns the share of each part in the batch's loss."""
        return [size / self.samples for size in self.sizes]

    def sum_dtype(self, dtype: Any) -> Any:
        """Returns the dtype in which gradients of the parts are summed, rounded at the end alone.

        A sum in bfloat16 stops growing: with 8 bits, adding 1 to 256 changes nothing.
        """
        narrow = jax.numpy.finfo(dtype).bits < 32 and len(self.sizes) > 1
        return np.dtype(np.float32 if narrow else dtype)

    def struct(self, size: int) -> PyTree:
        """Returns the shapes and dtypes of a part with `size` samples."""
        leaves = [
            jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype) if leaf.shape else leaf
            for leaf in self.leaves
        ]
        return jax.tree.unflatten(self.tree, leaves)

    def check(self, batch: PyTree) -> list[Any]:
        """Returns the leaves of a batch, if they match the batch that this was made from.

        Raises:
            ValueError: the leaves do not match.
        """
        leaves, tree = jax.tree.flatten(batch)
        leaves = [_as_array(leaf) for leaf in leaves]
        given = [_kind(leaf) for leaf in leaves]
        expected = [_kind(leaf) for leaf in self.leaves]
        if tree != self.tree or given != expected:
            raise ValueError(
                f"The plan was made for batches {self.tree} of {', '.join(expected)}, got {tree} "
                f"of {', '.join(given)}. Drop the last, shorter batch of an epoch, or make a "
                "separate pipeline for it."
            )
        return leaves

    def part(self, leaf: Any, number: int) -> Any:
        """Returns one part of a leaf."""
        if not leaf.shape:
            return jax.random.fold_in(leaf, number) if is_key(leaf) else leaf
        begin = sum(self.sizes[:number])
        return leaf[begin : begin + self.sizes[number]]
