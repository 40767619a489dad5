"""Aliases and protocols that the other modules share."""

from __future__ import annotations

from typing import Any

import jax

PyTree = Any
"""Any nested containers that JAX can flatten."""

Leaves = tuple[jax.Array, ...]
"""The exchanged leaves of a tree as real float32 arrays, in the order of the tree."""

Chunks = tuple[jax.Array, ...]
"""Packed leaves: one array ``[nodes, width]`` per chunk; row p is the part that node p sums."""

ShapeDtype = jax.ShapeDtypeStruct

LocalAxis = str | tuple[str, ...] | None
"""The axis (or axes) of ``shard_map`` or ``pmap`` whose devices hold copies of the parameters."""
