"""The ways in which a chunk gets from node to node: one module an engine, one interface.

`make_reducer` gives the function that a channel's thread calls for each exchange. The `simulated`
engine has none: its nodes live on one device and exchange inside the compiled step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from .._compat import private_cpu_device
from .._group import Group
from .._types import Transport
from .._wire import Wire, sum_rows

ENGINES = ("mpi4py", "mpi4jax", "simulated", "instant")


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


def check_engine(name: str, num_nodes: int) -> None:
    """Raises where the engine cannot work here.

    Raises:
        ImportError: mpi4jax is missing, or was built for another MPI.
    """
    if name == "mpi4jax" and num_nodes > 1:
        from ._mpi4jax import import_mpi4jax

        import_mpi4jax()


def make_reducer(
    engine: str,
    wire: Wire,
    nodes: int,
    duplicate: Callable[[], Group],
    *,
    check: Callable[[], None],
    limit_seconds: float,
    bytes_per_second: Callable[[], float],
    survives: bool,
) -> Reducer:
    """How an engine reduces, over communicators that nobody else uses.

    Args:
        engine: its name.
        wire: the format of the rows.
        nodes: how many there are rows for.
        duplicate: gives a communicator of all nodes that live; they call it together.
        check: called while waiting; raises when there is no sense in waiting on.
        limit_seconds: the longest wait.
        bytes_per_second: the slowest link's; all nodes call it together, and get the same.
        survives: whether it goes on where a node dies.
    """
    sums = partial(sum_part, wire)
    sums = compiled_for_host(sums) if wire.narrow else sums
    if engine == "instant":
        return InTurn(_Instant(wire, len(duplicate().living)), limit_seconds)
    if engine == "mpi4jax":
        from ._mpi4jax import Mpi4jaxTransport

        reduce = partial(_reduce, Mpi4jaxTransport(duplicate().comm), wire, sums)
        return InTurn(reduce, limit_seconds)
    if survives:
        from ._surviving import SurvivingReducer

        return SurvivingReducer(duplicate(), nodes, wire, sums, check, limit_seconds)
    from ._mpi4py import Mpi4pyReducer

    comms = duplicate().comm, duplicate().comm
    return Mpi4pyReducer(comms, wire, sums, check, limit_seconds, bytes_per_second())


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


def _reduce(
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


class _Instant:
    """Engine ``instant``: packs, copies and merges as the others, and sends nothing.

    The node's own numbers come back as if all nodes held them: the limit to measure against.
    """

    def __init__(self, wire: Wire, nodes: int):
        self._wire = wire

        def multiply(rows: Any, width: int) -> tuple[Any, Any]:
            total = wire.decode(rows[:, :width]) * np.float32(nodes)
            return wire.encode(total), 0 * total[0] if wire.narrow else total[0, :0]

        self._multiply = compiled_for_host(multiply)

    def __call__(
        self, rows: np.ndarray, place: np.ndarray, headed: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """P times the node's own rows."""
        encoded, residual = self._multiply(rows, place.shape[1])
        np.copyto(place, encoded)
        return np.asarray(residual), heads_of(self._wire, rows) if headed else None
