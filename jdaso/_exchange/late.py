"""A late exchange of one fragment as a compiled step sees it; all its methods are traceable.

`make.late_of` picks the subclass that fits a session. Real nodes hold the numbers of late exchanges
on the host (`late_host`), virtual nodes in the optimizer's state (`late_virtual`).
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from .._jax.types import Leaves, PyTree
from .._payload.header import none_weighs
from .._payload.words import BAD_LEAF
from .._rules.merge import Merge
from .exchange import Exchange
from .replicated import Common


@dataclasses.dataclass(frozen=True)
class Correction:
    """The result of a late exchange.

    Attributes:
        change: for each leaf, float32, the change that `Merge.merge` takes.
        heads: headers of all nodes, int32 ``[nodes, HEADER]``.
    """

    change: Leaves
    heads: jax.Array

    @property
    def merges(self) -> jax.Array:
        """True if the result can be merged: finite, and not all weights are 0."""
        return ~jax.numpy.any(self.heads[:, BAD_LEAF] != 0) & ~none_weighs(self.heads)


@dataclasses.dataclass(frozen=True)
class Late(abc.ABC):
    """The late exchanges of one fragment.

    Methods take and return `held`, the fragment's numbers in the optimizer's state: arrays for
    virtual nodes; for real ones an int32, the model whose numbers the host holds.

    Attributes:
        exchange: its exchange.
        rule: how a result is merged.
        dress: gives the fragment's float32 leaves the structure of the parameters.
        checks: whether checksums of replicated numbers are compared.
    """

    exchange: Exchange
    rule: Merge
    dress: Callable[[Leaves], PyTree]
    checks: bool

    @property
    def anchored(self) -> bool:
        """True if a point common to all nodes is kept between exchanges."""
        return self.rule.needs_anchor or self.exchange.wire.narrow

    @property
    def feeds(self) -> bool:
        """True if there is error feedback."""
        return self.exchange.wire.narrow

    @abc.abstractmethod
    def empty(self, model: int) -> PyTree:
        """The held numbers before the first exchange.

        Args:
            model: number of the model, which distinguishes those that one optimizer trains.
        """

    @abc.abstractmethod
    def begin(self, held: PyTree, leaves: Leaves, step: jax.Array) -> tuple[PyTree, jax.Array]:
        """Takes the common point before the first exchange, the same on all nodes.

        Args:
            held: see `Late`.
            leaves: the fragment's leaves, each in its own dtype, like all leaves here.
            step: completed updates.

        Returns:
            The new `held`, and a token for `order.after`.
        """

    @abc.abstractmethod
    def start(
        self,
        held: PyTree,
        leaves: Leaves,
        head: jax.Array,
        *,
        step: jax.Array,
        before: jax.Array,
        weight: jax.Array | None,
        turn: jax.Array,
    ) -> tuple[jax.Array, PyTree]:
        """Starts an exchange of the parameters.

        Args:
            held: see `Late`.
            leaves: the parameters.
            head: this node's header.
            step: completed updates.
            before: ticket of the exchange before, 0 for none.
            weight: this node's weight; None if the nodes have none.
            turn: number of the local device that sends.

        Returns:
            The ticket (step + 1), and the new `held`.
        """

    @abc.abstractmethod
    def wait(
        self, held: PyTree, ticket: jax.Array, age: jax.Array, turn: jax.Array, common: Common
    ) -> tuple[Correction, PyTree]:
        """Waits for an exchange. Raises on every node if the headers report an error.

        Args:
            held: see `Late`.
            ticket: from `start`.
            age: steps since then.
            turn: number of the local device that receives.
            common: replicated state whose checksum is in the headers, besides what is held.
        """

    @abc.abstractmethod
    def feedback(
        self, held: PyTree, before: jax.Array, turn: jax.Array
    ) -> tuple[Leaves, jax.Array]:
        """The error feedback that no exchange has taken in yet, float32; see `start`.

        Returns:
            The error feedback, and a token for `order.after`.
        """

    @abc.abstractmethod
    def without_feedback(self, held: PyTree) -> PyTree:
        """The held numbers once the error feedback was used elsewhere."""

    def merge(self, leaves: Leaves, found: Correction, age: jax.Array, living: Any) -> Leaves:
        """The merged parameters, float32."""
        return tuple(self.rule.merge(leaves, found.change, living, age.astype("float32")))
