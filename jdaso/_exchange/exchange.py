"""An exchange as compiled steps see it; all its methods are traceable.

`Exchange.total` is a sum that the step waits for; `late` has the exchanges that it does not wait
for. `make.exchange_of` picks the subclass that fits a session: `host` calls the
host's channel, `virtual` sums inside the compiled step.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.types import Leaves, LocalAxis, PyTree
from .._payload.header import differ, first_bad_leaf, weight_of_all, weights_are_wrong
from .._payload.layout import Division, Layout, Leaf
from .._payload.placement import Placement
from .._payload.wire import Wire
from .._payload.words import BAD_LEAF, FAILED, STATUS, STEP
from .._session import Session
from .received import Received
from .replicated import Common

CHUNK_BYTES = 16 * 2**20
"""Maximum float32 bytes in a chunk: small enough to overlap packing, sending and summing.

Also below 32 MiB: unless `keep_freed_memory` is in force, glibc returns larger blocks to the kernel
each time.
"""


@dataclasses.dataclass(frozen=True)
class Exchange(abc.ABC):
    """Exchanges of one tree between the nodes of a session.

    Attributes:
        session: the nodes.
        layout: how the tree is packed, shard by shard.
        wire: the format.
        local_axis: axis of the local devices that the caller runs inside, or None.
        name: distinguishes optimizers of equal shapes.
        owner: the optimizer's number, or -1 for the host itself: both may start an exchange again
            while it is in flight. 0 for a mean in a user's step, which may not.
        raise_nonfinite: whether numbers that are not finite are an error.
        placement: of the exchanged leaves, if any is divided over the node's devices.
        copies_alike: whether devices that hold copies of a leaf must hold equal ones.
        leaves: these leaves with their divisions; the layout has their shards.
    """

    session: Session
    layout: Layout
    wire: Wire
    local_axis: LocalAxis = None
    name: str = ""
    owner: int = 0
    raise_nonfinite: bool = True
    placement: Placement | None = None
    leaves: tuple[Leaf, ...] = ()
    copies_alike: bool = True

    @property
    @abc.abstractmethod
    def node(self) -> Any:
        """This node's number; traced for virtual nodes."""

    @abc.abstractmethod
    def ask_node(self) -> jax.Array:
        """This node's number, from the host while the step runs.

        A number that selects between values must not be a constant of the program. XLA would drop
        the value not taken and fuse the rest differently on each node. Different fusion rounds
        differently: replicated values would differ by a bit.
        """

    @abc.abstractmethod
    def checksum(self, tree: PyTree, divisions: Sequence[Division] = ()) -> jax.Array:
        """An int32 that two trees of different bits share only by chance; of this device's copy.

        Args:
            tree: arrays.
            divisions: of its leaves over the node's devices; empty if none is divided.
        """

    @abc.abstractmethod
    def total(
        self, leaves: Leaves, head: jax.Array, step: jax.Array, common: Common | None = None
    ) -> Received:
        """Sum over nodes of float32 leaves, which the step waits for.

        The header has the checksum of `common`.
        """

    def mean(
        self, leaves: Leaves, head: jax.Array, step: jax.Array, common: Common | None = None
    ) -> Received:
        """Mean over nodes of float32 leaves that are multiplied by the nodes' weights."""
        found = self.total(leaves, head, step, common)
        means = tuple(x / self.layout.nodes for x in found.scaled(found.total))
        return dataclasses.replace(found, total=means)

    def mean_of_finite(
        self, leaves: Leaves, count: int, head: jax.Array, step: jax.Array, common: Common | None
    ) -> Received:
        """Mean of the first `count` leaves over nodes where these are all finite; sum of the rest.

        If no node's numbers are finite, the means are 0.
        """
        bad = self.first_bad(leaves[:count])
        left = [jnp.where(bad > 0, jnp.zeros_like(leaf), leaf) for leaf in leaves[:count]]
        head = head.at[BAD_LEAF].set(bad)
        found = self.total((*left, *leaves[count:]), head, step, common)
        means = [leaf / weight_of_all(found.heads) for leaf in found.total[:count]]
        return dataclasses.replace(found, total=(*means, *found.total[count:]))

    def first_bad(self, leaves: Leaves) -> jax.Array:
        """1 + the place in the layout of the first leaf that is not finite; 0 if all are."""
        return first_bad_leaf(leaves)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the exchanged leaves, in the order of the layout."""
        return tuple(leaf.path for leaf in self.layout.exchanged)

    @abc.abstractmethod
    def _raise_if(
        self, wrong: jax.Array, heads: jax.Array, common: Common | None, report: Callable[..., Any]
    ) -> jax.Array:
        """Calls ``report(heads, checksums)`` on the host if `wrong`; returns the headers."""

    def report(
        self,
        heads: jax.Array,
        common: Common | None,
        beside: Callable[[np.ndarray], tuple[tuple[str, ...], np.ndarray]] | None = None,
    ) -> jax.Array:
        """Raises on all devices of all nodes together if the headers report an error.

        Args:
            heads: headers of all nodes.
            common: the state whose checksum is in the headers.
            beside: names and checksums of what the host holds besides `common`, given the headers.

        Returns:
            The headers, so that later operations cannot run before the check.
        """
        wrong = (
            jnp.any(heads[:, STATUS] == FAILED) | differ(heads[:, STEP]) | weights_are_wrong(heads)
        )
        if common is not None:
            wrong |= common.is_wrong(heads)
        if self.raise_nonfinite:
            wrong |= jnp.any(heads[:, BAD_LEAF] != 0)
        paths = self.paths
        common_paths = () if common is None else common.paths

        def report(heads: Any, prints: Any) -> np.ndarray:
            words = np.array(heads)
            if not self.raise_nonfinite:
                words[:, BAD_LEAF] = 0
            names, more = ((), np.zeros(0, np.int32)) if beside is None else beside(words)
            told = np.concatenate([more, np.asarray(prints)], axis=-1) if names else prints
            self.session.report(words, paths, (*names, *common_paths), np.asarray(told))
            return np.zeros((), np.int32)

        return self._raise_if(wrong, heads, common, report)
