"""A version: the numbers of one late exchange, which outlast a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._jax.types import PyTree
from .._payload.words import Facts
from .._rules.merge import Merge
from .in_flight import InFlight
from .passes import Owed, owed_on_host
from .staging import StagingMemory


@dataclasses.dataclass(eq=False)
class Version:
    """The numbers of one exchange; sequences are by chunk.

    Attributes:
        ticket: names it; 0 for the common point before the first exchange.
        numbers: the snapshot s; with the result, the change that a merge needs.
        weight: the weight of the numbers sent; None if the nodes have none.
        before: the version that this one is made from.
        anchor: the common point, once the version has a result.
        outer: the merge rule's state, likewise; None before the first exchange.
        error: the wire's rounding error of the numbers sent.
        paid: the error feedback that was added to these numbers.
        residuals: rounding errors of the part of the sum that this node formed.
        heads: headers of all nodes; None until the version has a result.
        facts: the facts in these headers.
        age: steps from the start to the merge; None before it.
        flight: the exchange, in this process.
        model: the model whose numbers these are; see `DasoState`.
    """

    ticket: int
    numbers: StagingMemory | None = None
    weight: np.float32 | None = None
    before: Version | None = None
    anchor: Sequence[Any] = ()
    outer: PyTree | None = None
    error: Sequence[Any] = ()
    paid: Sequence[Any] = ()
    residuals: Sequence[Any] = ()
    heads: np.ndarray | None = None
    facts: Facts | None = None
    age: int | None = None
    flight: InFlight | None = None
    model: int = 0

    def forget(self) -> None:
        """Notes that nothing waits for the exchange now, for example because it was saved."""
        if self.flight is not None:
            self.flight.forget()

    def owed(self, k: int, rule: Merge, node: np.int32) -> Owed | None:
        """The error feedback in chunk k, as the next exchange takes it in.

        Args:
            k: the chunk.
            rule: the merge rule.
            node: this node's number.
        """
        if not self.error or self.facts is None:
            return None
        facts, one = self.facts, np.float32(1)
        kept = np.float32(rule.kept_share(facts.living, np.float32(self.age)))
        factors = (one, np.float32(0))
        if facts.merges:
            factors = (facts.lost * (one - kept), facts.lost * kept)
        paid = self.paid[k] if self.paid else None
        return Owed(self.error[k], paid, self.residuals[k], node, *factors)

    def lost(self, node: np.int32) -> list[np.ndarray]:
        """Rounding errors of the wire: of the numbers sent, and of the part of the sum."""
        pairs = zip(self.error, self.residuals, strict=True)
        one, none = np.float32(1), np.float32(0)
        return [owed_on_host(Owed(x, None, y, node, one, none)) for x, y in pairs]


def joined(chunks: Sequence[Any]) -> np.ndarray:
    """Chunks as one vector."""
    return np.concatenate([np.asarray(x).reshape(-1) for x in chunks])
