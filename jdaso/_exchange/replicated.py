"""What is to be the same on all nodes, as compiled steps see it: checksums, and whether they agree.

They travel in the header of exchanges that are made anyway. Only where they differ do the hosts
compare further (`_drift`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._payload.checksums import checksums
from .._payload.layout import describe
from .._payload.trees import to_numbers
from .._payload.words import BAD_LEAF, CHECKSUM, LEFT_OUT
from .._types import LocalAxis, PyTree


@dataclasses.dataclass(frozen=True)
class Common:
    """What is to be the same on all nodes.

    Attributes:
        tree: a NamedTuple; the names of its fields are in errors.
        due: whether the nodes must agree yet; before that a difference is not an error.
    """

    tree: PyTree
    due: Any

    @property
    def paths(self) -> tuple[str, ...]:
        """Names of the leaves, in the order of `to_numbers`."""
        about = [leaf for leaf in describe(self.tree) if np.prod(leaf.shape) > 0]
        about.sort(key=lambda leaf: not leaf.exchanged)
        return tuple(leaf.path.removeprefix(".") for leaf in about)

    def is_wrong(self, heads: jax.Array) -> jax.Array:
        """Whether headers say that nodes differ which must not, and nothing is to be done."""
        return self.due & apart(heads)

    def prints(self, node: Any, local_axis: LocalAxis) -> jax.Array:
        """A checksum of each leaf; of one that the node's own devices hold differently, no other's.

        Args:
            node: this node's number.
            local_axis: the axis of its devices.
        """
        mine = checksums(to_numbers(self.tree))
        if local_axis is None:
            return mine
        least, most = (f(mine, local_axis) for f in (jax.lax.pmin, jax.lax.pmax))
        return jnp.where(least == most, most, most + 1 + node)


def apart(heads: jax.Array) -> jax.Array:
    """Whether the nodes sent different checksums, but for those that are left out."""
    words, counts = heads[:, CHECKSUM], _counts(heads)
    return jnp.any(counts & (words != words[jnp.argmax(counts)]))


def _counts(heads: jax.Array) -> jax.Array:
    """Which nodes are not left out."""
    return (heads[:, BAD_LEAF] == 0) & (heads[:, CHECKSUM] != LEFT_OUT)
