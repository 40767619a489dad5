"""The interface of an engine, which moves chunks between nodes, and code that engines share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from .._payload.wire import Wire


@runtime_checkable
class Work(Protocol):
    """The chunks of one exchange, as an engine sees them; the last one's rows end in a header."""

    count: int

    def ready(self, k: int) -> bool:
        """Returns whether all of chunk k is there, so that `take` need not wait."""
        ...

    def take(self, k: int, limit_seconds: float) -> np.ndarray:
        """Encoded rows of chunk k, ``[nodes, width or more]``; NodeError if they do not arrive."""
        ...

    def place(self, k: int) -> np.ndarray:
        """The memory for the encoded sums ``[nodes, width]`` of chunk k, the same on all nodes."""
        ...

    def give(self, k: int, residual: np.ndarray, heads: np.ndarray | None) -> None:
        """Reports that the sums of chunk k are in place.

        Args:
            k: the chunk; chunks are given in order.
            residual: rounding errors of encoding the part that this node summed, float32
                ``[width]``; empty for the float32 wire.
            heads: with the last chunk, the headers of all nodes.
        """
        ...


@runtime_checkable
class Reducer(Protocol):
    """Reduces exchanges one after another."""

    def __call__(self, work: Work) -> None:
        """Reduces all chunks of one exchange."""
        ...

    def close(self) -> None:
        """Ends helper threads; no exchange follows."""
        ...


SumRows = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Sums rows, and returns the wire's rounding error; see `Passes.total`."""

ReduceChunk = Callable[[np.ndarray, np.ndarray, bool], tuple[np.ndarray, np.ndarray | None]]
"""Takes rows to send, memory for their sums, and whether rows end in a header; for `Work.give`."""


@dataclasses.dataclass(frozen=True)
class InTurn:
    """Reduces one chunk after another."""

    reduce: ReduceChunk
    limit_seconds: float

    def __call__(self, work: Work) -> None:
        """See `Reducer`."""
        for k in range(work.count):
            rows = work.take(k, self.limit_seconds)
            work.give(k, *self.reduce(rows, work.place(k), k == work.count - 1))

    def close(self) -> None:
        """See `Reducer`."""


def heads_of(wire: Wire, rows: np.ndarray) -> np.ndarray:
    """The headers at the ends of rows, int32 ``[nodes, HEADER]``."""
    return np.ascontiguousarray(rows[:, -wire.header_width :]).view(np.int32)
