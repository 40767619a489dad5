"""Aliases and protocols that the other modules share."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from ._guard import STOPPED_STATUS

PyTree = Any
"""Any nest of containers that JAX flattens."""

Leaves = tuple[jax.Array, ...]
"""The exchanged leaves of a tree as real float32 arrays, in the order of the tree."""

Chunks = tuple[jax.Array, ...]
"""Packed leaves: one array ``[nodes, width]`` a chunk; row p is the part that node p sums."""

ShapeDtype = jax.ShapeDtypeStruct

LocalAxis = str | tuple[str, ...] | None
"""The axis (or axes) of ``shard_map`` or ``pmap`` whose devices hold copies of the parameters."""


class Stopped(SystemExit):
    """All nodes end together, at the same step, because one was told to; their state is saved.

    The program ends with status 75 (EX_TEMPFAIL): start it again to go on.
    """

    __module__ = "jdaso"

    def __init__(self):
        super().__init__(STOPPED_STATUS)


class NodeError(RuntimeError):
    """Something is wrong with, or between, the nodes of a run.

    The text begins with the node that speaks, ``[node 3 of 8, host n02, step 120]``, then says
    what is wrong, what was given, and what to do. Raised inside a compiled step it surfaces as
    ``jax.errors.JaxRuntimeError`` (where JAX's fast dispatch meets it, as ``ValueError``) with the
    same text.
    """

    __module__ = "jdaso"


@runtime_checkable
class Transport(Protocol):
    """Moves one chunk between the nodes; called by the one thread of a channel."""

    def all_to_all(self, rows: np.ndarray) -> np.ndarray:
        """Row p of `rows` goes to node p; row p of the result came from node p."""
        ...

    def all_gather(self, row: np.ndarray, out: np.ndarray) -> None:
        """Row p of `out` becomes what node p gave."""
        ...
