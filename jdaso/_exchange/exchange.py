"""An exchange as compiled steps see it; all its verbs are traceable.

A late exchange is `Exchange.start` and, steps later, `Exchange.wait`; `Exchange.total` is a mean
that the step waits for. `make.exchange_of` gives the one for the nodes of a session: `host` calls
the host's channel, `virtual` adds inside the compiled step.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._payload.chunks import pack, unpack
from .._payload.header import differ, weights_are_wrong
from .._payload.layout import Layout
from .._payload.trees import from_leaves, to_leaves
from .._payload.wire import Wire
from .._payload.words import BAD_LEAF, FAILED, STATUS, STEP
from .._session import Session
from .._types import Chunks, Leaves, LocalAxis, PyTree
from .received import Received
from .replicated import Common

CHUNK_BYTES = 16 * 2**20
"""Most float32 bytes in a chunk: small enough to overlap packing, sending and summing.

And below 32 MiB: where `keep_freed_memory` is not in force, glibc gives larger blocks back to the
kernel each time.
"""


@dataclasses.dataclass(frozen=True)
class Exchange(abc.ABC):
    """Exchanges of one tree between the nodes of a session.

    Attributes:
        session: the nodes.
        layout: how the tree is packed.
        wire: the format.
        local_axis: axis of the local devices that the caller is inside of, or None.
        name: tells optimizers of equal shapes apart.
        owner: the optimizer, whose exchange may be started again while it is in flight; -1 for the
            host itself, which may too; 0 for a mean in a user's step, which may not.
        raise_nonfinite: whether numbers that are not finite are an error.
    """

    session: Session
    layout: Layout
    wire: Wire
    local_axis: LocalAxis = None
    name: str = ""
    owner: int = 0
    raise_nonfinite: bool = True

    def pack(self, tree: PyTree) -> Chunks:
        """The tree's numbers as float32 chunks."""
        return pack(self.layout, to_leaves(tree))

    def unpack(self, tree: PyTree, chunks: Chunks) -> PyTree:
        """`tree` with the numbers of the chunks, each leaf in its own dtype."""
        return from_leaves(tree, unpack(self.layout, chunks))

    @property
    @abc.abstractmethod
    def node(self) -> Any:
        """This node's number; between virtual nodes a traced one."""

    @abc.abstractmethod
    def ask_node(self) -> jax.Array:
        """The same, from the host while the step runs.

        Where it decides between numbers it must not be a constant of the program. XLA would drop
        what is not taken, fuse the rest otherwise than on other nodes, and so round otherwise:
        what must be replicated on all nodes would differ by a bit.
        """

    @abc.abstractmethod
    def empty_flight(self) -> PyTree:
        """The part of the state that stands for an exchange in flight, before the first."""

    @abc.abstractmethod
    def start(
        self, leaves: Leaves, head: jax.Array, step: jax.Array, turn: jax.Array
    ) -> tuple[jax.Array, PyTree, Leaves]:
        """Starts a late exchange.

        Args:
            leaves: what this node sends, float32.
            head: its header.
            step: completed updates.
            turn: which local device sends first; the segments go round from there.

        Returns:
            The ticket (step + 1), what is in flight, and what was sent as the wire rounded it.
        """

    @abc.abstractmethod
    def wait(
        self, ticket: jax.Array, flight: PyTree, turn: jax.Array, common: Common | None = None
    ) -> Received:
        """Waits for a late exchange. Raises on every node what the headers say.

        Args:
            ticket: what `start` gave.
            flight: the same.
            turn: which local device asks the host first.
            common: of what the headers hold the checksum.
        """

    @abc.abstractmethod
    def add_residual(self, leaves: Leaves, received: Received, factor: jax.Array) -> Leaves:
        """`leaves` with `factor` times what the wire took from the part that this node summed."""

    @abc.abstractmethod
    def total(
        self, chunks: Chunks, head: jax.Array, step: jax.Array, common: Common | None = None
    ) -> Received:
        """Sum over nodes; the step waits for it. `common` is what the header sums up."""

    @abc.abstractmethod
    def _raise_if(
        self, wrong: jax.Array, heads: jax.Array, common: Common | None, report: Callable[..., Any]
    ) -> jax.Array:
        """Calls ``report(heads, checksums)`` on the host where `wrong`; returns the headers."""

    def _report(self, heads: jax.Array, common: Common | None) -> jax.Array:
        """Every device of every node raises together if the headers say that something is wrong.

        Returns the headers, so that nothing that follows can come before.
        """
        wrong = (
            jnp.any(heads[:, STATUS] == FAILED) | differ(heads[:, STEP]) | weights_are_wrong(heads)
        )
        if common is not None:
            wrong |= common.is_wrong(heads)
        if self.raise_nonfinite:
            wrong |= jnp.any(heads[:, BAD_LEAF] != 0)
        paths = tuple(leaf.path for leaf in self.layout.exchanged)
        common_paths = () if common is None else common.paths

        def report(heads: Any, prints: Any) -> np.ndarray:
            words = np.array(heads)
            if not self.raise_nonfinite:
                words[:, BAD_LEAF] = 0
            self.session.report(words, paths, common_paths, np.asarray(prints))
            return np.zeros((), np.int32)

        return self._raise_if(wrong, heads, common, report)

    def _decoded(self, rows: Chunks, lost: Chunks, heads: jax.Array) -> Received:
        """The result of rows of all nodes, of which each has summed one."""
        total = tuple(self.wire.decode(row) for row in rows)
        if not self.wire.narrow:
            return Received(total, (), heads)
        mine = jnp.arange(self.layout.nodes)[:, None] == self.node
        parts = tuple(jnp.where(mine, part, jnp.zeros_like(part)) for part in lost)
        return Received(total, parts, heads)
