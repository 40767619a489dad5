"""Replicated state as compiled steps see it: checksums, and whether the nodes' checksums agree.

Checksums travel in the headers of exchanges that are made anyway. Only if these differ do the hosts
compare leaf by leaf (`_nodes.compare`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.types import LocalAxis, PyTree
from .._payload.checksums import checksums
from .._payload.layout import Division, describe
from .._payload.trees import to_numbers
from .._payload.words import BAD_LEAF, CHECKSUM, LEFT_OUT


@dataclasses.dataclass(frozen=True)
class Common:
    """State that must be replicated on all nodes.

    Attributes:
        tree: a NamedTuple; the names of its fields appear in errors.
        due: whether the nodes must agree yet; before that a difference is not an error.
        divisions: of its leaves over the node's devices; empty if none is divided.
    """

    tree: PyTree
    due: Any
    divisions: Sequence[Division] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Names of the leaves, in the order of `to_numbers`."""
        about = [leaf for leaf in describe(self.tree) if np.prod(leaf.shape) > 0]
        about.sort(key=lambda leaf: not leaf.exchanged)
        return tuple(leaf.path.removeprefix(".") for leaf in about)

    def is_wrong(self, heads: jax.Array) -> jax.Array:
        """True if the headers show that nodes diverged when they must agree."""
        return self.due & apart(heads)

    def prints(self, node: Any, local_axis: LocalAxis) -> jax.Array:
        """One checksum per leaf. If this node's devices disagree, a value that no other node has.

        Args:
            node: this node's number.
            local_axis: the axis of this node's devices.
        """
        mine = checksums(to_numbers(self.tree))
        if local_axis is None:
            return mine
        least, most = (f(mine, local_axis) for f in (jax.lax.pmin, jax.lax.pmax))
        return jnp.where(least == most, most, most + 1 + node)


def apart(heads: jax.Array) -> jax.Array:
    """True if the nodes' checksums differ; those left out do not count."""
    words, counts = heads[:, CHECKSUM], _counts(heads)
    return jnp.any(counts & (words != words[jnp.argmax(counts)]))


def _counts(heads: jax.Array) -> jax.Array:
    """Mask of the nodes that are not left out."""
    return (heads[:, BAD_LEAF] == 0) & (heads[:, CHECKSUM] != LEFT_OUT)
