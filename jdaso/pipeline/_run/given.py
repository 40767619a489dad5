"""Trees that users give to a pipeline: compared with the plan and between nodes, and copied."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..._jax.types import PyTree
from ..._mpi.names import names_of
from ..._payload.checksums import checksum_of_all
from ..._payload.layout import describe
from .._plan.equations import is_key
from .._plan.microbatch import Microbatches
from .grid import Grid


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


def require_common(grid: Grid, microbatches: Microbatches, batch: PyTree) -> None:
    """Compares the batches of the ranks of each pipeline; all nodes call this together.

    Raises:
        ValueError: this node's batch is not as planned.
        NodeError: on all nodes; ranks of a pipeline have different samples.
    """
    leaves = microbatches.check(batch)
    if grid.partitions == 1:
        return
    pairs = zip(leaves, microbatches.leaves, strict=True)
    arrays = [
        np.asarray(jax.random.key_data(x) if is_key(x) else x, None if is_key(x) else like.dtype)
        for x, like in pairs
    ]
    own, session, partitions = checksum_of_all(arrays), grid.session, grid.partitions
    found = session.all_ranks.allgather("compare the batches of a pipeline", np.array([own]))
    of_pipelines = found.reshape(-1, partitions)
    if (apart := np.flatnonzero(of_pipelines.min(1) != of_pipelines.max(1))).size:
        first = int(apart[0]) * partitions
        raise session.control.error(
            f"{names_of(range(first, first + partitions), 1)} hold the {partitions} partitions of "
            "one model, but were given different samples. Give the same batch to all of them; with "
            f"jdaso.data.Loader: share=(session.node // {partitions}, "
            f"session.num_nodes // {partitions})."
        )


def own_copy(array: Any) -> Any:
    """Copies a NumPy array, whose memory a JAX array on a CPU might share with the caller."""
    return array.copy() if isinstance(array, np.ndarray) else array
