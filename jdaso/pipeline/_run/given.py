"""Trees that users give to a pipeline: compared with the plan, and copied."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..._jax.types import PyTree
from ..._payload.layout import describe


def require_alike(name: str, planned: PyTree, given: PyTree) -> None:
    """Compares a tree with that of the plan.

    Args:
        name: of the argument.
        planned: shapes and dtypes, as `jdaso.pipeline.partition` found them.
        given: arrays; 64-bit NumPy arrays count as the dtype that JAX gives them.

    Raises:
        ValueError: structure, a shape or a dtype differs; names the first such leaf.
    """
    trees = jax.tree.structure(given), jax.tree.structure(planned)
    if trees[0] != trees[1]:
        raise ValueError(
            f"{name} has another structure than the plan: got {trees[0]}, planned {trees[1]}. "
            "Give the tree that partition was given, or partition the model anew."
        )
    for own, leaf in zip(describe(given), describe(planned), strict=True):
        if (own.shape, own.dtype) != (leaf.shape, leaf.dtype):
            raise ValueError(
                f"{name}{leaf.path} is {own}, but the plan was made for {leaf}. Convert it, or "
                "partition the model anew."
            )


def own_copy(array: Any) -> Any:
    """Copies a NumPy array, whose memory a JAX array on a CPU might share with the caller."""
    return array.copy() if isinstance(array, np.ndarray) else array
