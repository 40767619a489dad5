"""The ways in which a chunk gets from node to node: one module an engine, one interface.

`make_reducer` gives the function that a channel's thread calls for each chunk. The `simulated`
engine has none: its nodes live on one device and exchange inside the compiled step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .._types import Transport
from .._wire import Wire, sum_rows

ENGINES = ("mpi4jax", "mpi4py", "simulated", "instant")


class Reduced(NamedTuple):
    """What the nodes made of one chunk."""

    rows: np.ndarray  # encoded sums [nodes, w], the same on all nodes
    residual: np.ndarray  # float32 [width]: what encoding took from the part that this node summed


Reducer = Callable[[np.ndarray, np.ndarray, bool], tuple[Reduced, np.ndarray | None]]
"""Takes encoded rows to send ``[nodes, w]``, a buffer for the result, and whether the rows end in
a header; gives the result and, if so, the headers of all nodes."""


def check_engine(name: str, num_nodes: int) -> None:
    """Raises where the engine cannot work here.

    Raises:
        ImportError: mpi4jax is missing, or was built for another MPI.
    """
    if name == "mpi4jax" and num_nodes > 1:
        from ._mpi4jax import import_mpi4jax

        import_mpi4jax()


def make_reducer(
    engine: str, wire: Wire, comm: Any, *, check: Callable[[], None], limit_seconds: float
) -> Reducer:
    """How an engine reduces a chunk, over a communicator that nobody else uses.

    Args:
        engine: its name.
        wire: the format of the rows.
        comm: mpi4py communicator.
        check: called while waiting; raises when there is no sense in waiting on.
        limit_seconds: the longest wait.
    """
    if engine == "instant":
        return partial(_reduce, _Instant(wire, comm.Get_size()), wire)
    if engine == "mpi4jax":
        from ._mpi4jax import Mpi4jaxTransport

        return partial(_reduce, Mpi4jaxTransport(comm), wire)
    from ._mpi4py import Mpi4pyTransport

    return partial(_reduce, Mpi4pyTransport(comm, check, limit_seconds), wire)


def _reduce(
    transport: Transport, wire: Wire, rows: np.ndarray, out: np.ndarray, headed: bool
) -> tuple[Reduced, np.ndarray | None]:
    """Each node sums its part and gathers the others': the bytes of a ring, the same bits."""
    received, heads = transport.all_to_all(rows), None
    if headed:
        bits = np.ascontiguousarray(received[:, -wire.header_width :])
        received, heads = received[:, : -wire.header_width], bits.view(np.int32)
    if isinstance(transport, _Instant):
        return transport.reduce(received), heads
    total = sum_rows(wire, received)
    encoded = wire.encode(total)
    residual = total - wire.decode(encoded) if wire.narrow else np.zeros(0, np.float32)
    return Reduced(transport.all_gather(encoded, out), residual), heads


class _Instant:
    """Engine ``instant``: packs, copies and merges as the others, and sends nothing.

    The node's own numbers come back as if all nodes held them: the limit to measure against.
    """

    def __init__(self, wire: Wire, nodes: int):
        self._wire, self._nodes = wire, nodes

    def all_to_all(self, rows: np.ndarray) -> np.ndarray:
        """The rows stay where they are."""
        return rows

    def all_gather(self, row: np.ndarray, out: np.ndarray) -> np.ndarray:
        """The same row for all nodes."""
        out[...] = row
        return out

    def reduce(self, rows: np.ndarray) -> Reduced:
        """P times the node's own rows."""
        total = self._wire.decode(rows) * np.float32(self._nodes)
        residual = np.zeros(total.shape[-1] if self._wire.narrow else 0, np.float32)
        return Reduced(self._wire.encode(total), residual)
