"""Engines: ways in which a chunk gets from node to node. One module an engine, one interface."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from .._compat import private_cpu_device
from .._payload.wire import Wire, sum_rows


@runtime_checkable
class Work(Protocol):
    """The chunks of one exchange, as an engine sees them; the last one's rows end in a header."""

    count: int

    def ready(self, k: int) -> bool:
        """Whether all of chunk k is there, so that `take` need not wait."""
        ...

    def take(self, k: int, limit_seconds: float) -> np.ndarray:
        """Encoded rows of chunk k, ``[nodes, width or more]``; NodeError if they do not come."""
        ...

    def place(self, k: int) -> np.ndarray:
        """Where its encoded sums ``[nodes, width]`` go, the same on all nodes."""
        ...

    def give(self, k: int, residual: np.ndarray, heads: np.ndarray | None) -> None:
        """Says that they are there.

        Args:
            k: the chunk; they are given in their order.
            residual: what encoding took from the part that this node summed, float32 ``[width]``;
                empty for the float32 wire.
            heads: with the last chunk, the headers of all nodes.
        """
        ...


@runtime_checkable
class Reducer(Protocol):
    """Reduces an exchange after the other."""

    def __call__(self, work: Work) -> None:
        """All chunks of one."""
        ...

    def close(self) -> None:
        """Ends what runs besides; no exchange follows."""
        ...


ReduceChunk = Callable[[np.ndarray, np.ndarray, bool], tuple[np.ndarray, np.ndarray | None]]
"""Of rows to send, a place for their sums, and whether they end in a header; for `Work.give`."""


@dataclasses.dataclass(frozen=True)
class InTurn:
    """Reduces chunk after chunk."""

    reduce: ReduceChunk
    limit_seconds: float

    def __call__(self, work: Work) -> None:
        """See `Reducer`."""
        for k in range(work.count):
            rows = work.take(k, self.limit_seconds)
            work.give(k, *self.reduce(rows, work.place(k), k == work.count - 1))

    def close(self) -> None:
        """See `Reducer`."""


def compiled_for_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of rows (and of static numbers) as one program of the host's own CPU device.

    One pass over memory, without Python's lock, where NumPy makes a pass and a temporary for each
    operation: for narrow wires that takes 2 to 12 times as long. (A float32 sum is one operation;
    it stays NumPy.)
    """
    cpu = private_cpu_device()
    program = jax.jit(function, static_argnums=1)
    return lambda rows, width: program(jax.device_put(rows, cpu), width)


def sum_part(wire: Wire, rows: Any, width: int) -> tuple[Any, Any]:
    """Sums encoded rows ``[nodes, width or more]``.

    Returns the encoded sum ``[width]``, and what encoding took from it (empty for float32).
    """
    total = sum_rows(wire, rows[:, :width])
    encoded = wire.encode(total)
    return encoded, total - wire.decode(encoded) if wire.narrow else total[:0]


def reduce_on_host(
    transport: Transport,
    wire: Wire,
    sums: Callable[..., tuple[Any, Any]],
    rows: np.ndarray,
    place: np.ndarray,
    headed: bool,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Each node sums its part and gathers the others': the bytes of a ring, the same bits."""
    received = transport.all_to_all(rows)
    encoded, residual = sums(received, place.shape[1])
    heads = heads_of(wire, received) if headed else None
    transport.all_gather(np.asarray(encoded), place)
    return np.asarray(residual), heads


def heads_of(wire: Wire, rows: np.ndarray) -> np.ndarray:
    """The headers at the ends of rows, int32 ``[nodes, HEADER]``."""
    return np.ascontiguousarray(rows[:, -wire.header_width :]).view(np.int32)


@runtime_checkable
class Transport(Protocol):
    """Moves one chunk between the nodes; called by the one thread of a channel."""

    def all_to_all(self, rows: np.ndarray) -> np.ndarray:
        """Row p of `rows` goes to node p; row p of the result came from node p."""
        ...

    def all_gather(self, row: np.ndarray, out: np.ndarray) -> None:
        """Row p of `out` becomes what node p gave."""
        ...
