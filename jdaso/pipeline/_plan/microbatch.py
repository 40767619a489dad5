"""How a batch is cut into micro-batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from ..._types import PyTree
from .equations import is_key


def _as_array(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else np.asarray(leaf)


def _dtype(leaf: Any) -> Any:
    """As which JAX takes an array: without x64, float64 as float32."""
    return leaf.dtype if is_key(leaf) else jax.dtypes.canonicalize_dtype(leaf.dtype)


def _kind(leaf: Any) -> str:
    return f"{_dtype(leaf)}{list(leaf.shape)}"


@dataclasses.dataclass(frozen=True)
class Microbatches:
    """The parts of a batch.

    Leaves are cut along their leading axis. A leaf without axes is the same for all parts; a single
    key of `jax.random.key` is folded with the part's number, so that parts draw different numbers.

    Attributes:
        tree: of the batch.
        leaves: shapes and dtypes of its leaves.
        sizes: samples in each part; they differ by one at most.
    """

    tree: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, batch: PyTree, number: int) -> Microbatches:
        """How to cut a batch into so many.

        Raises:
            ValueError: it cannot be cut.
        """
        leaves, tree = jax.tree.flatten(batch)
        leaves = [_as_array(leaf) for leaf in leaves]
        structs = tuple(jax.ShapeDtypeStruct(leaf.shape, _dtype(leaf)) for leaf in leaves)
        sizes = {leaf.shape[0] for leaf in structs if leaf.shape}
        if len(sizes) != 1:
            paths = jax.tree.leaves_with_path(batch)
            said = ", ".join(
                f"{jax.tree_util.keystr(path)} {tuple(leaf.shape)}"
                for (path, _), leaf in zip(paths, leaves, strict=True)
            )
            raise ValueError(
                "A batch is cut along the leading axis of its arrays, which must be equally long "
                f"in all of them, got {said or 'no arrays'}. What is the same for all samples must "
                "be a scalar; random keys are to be made by jax.random.key, one for the batch or "
                "one for each sample."
            )
        (samples,) = sizes
        if not 1 <= number <= samples:
            raise ValueError(
                f"A batch of {samples} samples cannot be cut into num_microbatches={number} parts. "
                "Give it as many samples as micro-batches or more."
            )
        size, larger = divmod(samples, number)
        return cls(tree, structs, tuple(size + (k < larger) for k in range(number)))

    @property
    def samples(self) -> int:
        """In the whole batch."""
        return sum(self.sizes)

    def weights(self) -> list[np.float32]:
        """The share of each part in the batch's loss."""
        return [np.float32(size / self.samples) for size in self.sizes]

    def struct(self, size: int) -> PyTree:
        """Shapes and dtypes of a part with so many samples."""
        leaves = [
            jax.ShapeDtypeStruct((size, *leaf.shape[1:]) if leaf.shape else (), leaf.dtype)
            for leaf in self.leaves
        ]
        return jax.tree.unflatten(self.tree, leaves)

    def check(self, batch: PyTree) -> list[Any]:
        """The leaves of a batch, if it is like the one this was made from.

        Raises:
            ValueError: it is not.
        """
        leaves, tree = jax.tree.flatten(batch)
        leaves = [_as_array(leaf) for leaf in leaves]
        given = [_kind(leaf) for leaf in leaves]
        expected = [_kind(leaf) for leaf in self.leaves]
        if tree != self.tree or given != expected:
            raise ValueError(
                f"The plan was made for batches {self.tree} of {', '.join(expected)}, got {tree} "
                f"of {', '.join(given)}. Drop the last, shorter batch of an epoch, or make a "
                "pipeline of its own for it."
            )
        return leaves

    def part(self, leaf: Any, number: int) -> Any:
        """One part of a leaf."""
        if not leaf.shape:
            return jax.random.fold_in(leaf, number) if is_key(leaf) else leaf
        begin = sum(self.sizes[:number])
        return leaf[begin : begin + self.sizes[number]]
