"""The ways in which a chunk gets from node to node: one module an engine, one interface.

`make_reducer` gives the function that a channel's thread calls for each chunk. The `simulated`
engine has none: its nodes live on one device and exchange inside the compiled step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from .._compat import private_cpu_device
from .._types import Transport
from .._wire import Wire, sum_rows

ENGINES = ("mpi4jax", "mpi4py", "simulated", "instant")

Reducer = Callable[[np.ndarray, int, np.ndarray, bool], tuple[np.ndarray, np.ndarray | None]]
"""Takes encoded rows to send ``[nodes, width or more]``, that width, a buffer for the encoded sums
``[nodes, width]``, the same on all nodes, and whether the rows end in a header. Gives what encoding
took from the part that this node summed (float32 ``[width]``; empty for the float32 wire) and, if
so, the headers of all nodes."""


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
        return _Instant(wire, comm.Get_size())
    if engine == "mpi4jax":
        from ._mpi4jax import Mpi4jaxTransport

        transport: Transport = Mpi4jaxTransport(comm)
    else:
        from ._mpi4py import Mpi4pyTransport

        transport = Mpi4pyTransport(comm, check, limit_seconds)
    sums = partial(sum_part, wire)
    return partial(_reduce, transport, wire, compiled_for_host(sums) if wire.narrow else sums)


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
    width: int,
    out: np.ndarray,
    headed: bool,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Each node sums its part and gathers the others': the bytes of a ring, the same bits."""
    received = transport.all_to_all(rows)
    encoded, residual = sums(received, width)
    heads = _heads(wire, received) if headed else None
    transport.all_gather(np.asarray(encoded), out)
    return np.asarray(residual), heads


def _heads(wire: Wire, rows: np.ndarray) -> np.ndarray:
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
        self, rows: np.ndarray, width: int, out: np.ndarray, headed: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """P times the node's own rows."""
        encoded, residual = self._multiply(rows, width)
        np.copyto(out, encoded)
        return np.asarray(residual), _heads(self._wire, rows) if headed else None
