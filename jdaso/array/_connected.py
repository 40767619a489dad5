"""The operations that join the blocks of a session's nodes.

In eager code a block is host memory, and the operation is MPI's, under the session's limits: a node
that fails or is late is named, and the wait ends. Inside `jax.jit` the operation is mpi4jax's and
part of the compiled program.
"""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._engines.mpi4jax import import_mpi4jax
from .._jax.ffi import aligned
from .._mpi import arrays
from .._mpi.arrays import Ranges
from .._session import Session
from ._counting import note
from ._in_place import pieces
from ._layout import Shape, replaced


class Connected:
    """The nodes of a session.

    Args:
        session: a session of several nodes.
    """

    def __init__(self, session: Session):
        self._control, self._tags = session.control, itertools.count()
        self.node, self.nodes = session.node, session.num_nodes
        self._devices = len(session.devices)

    @functools.cached_property
    def _comm(self) -> Any:
        """A separate communicator, made by all nodes at the first operation between them."""
        return self._control.duplicate().comm

    def reduce(self, x: jax.Array, operation: str) -> jax.Array:
        """Returns the sum, prod, min or max of all nodes' arrays, which have one shape."""
        note(1, 2 * x.nbytes * self._others)
        if isinstance(x, Tracer):
            return self._reduce_compiled(x, operation)
        self._same(f"reduce {x.dtype} of {x.shape} by {operation}", x)
        array = np.ascontiguousarray(x).reshape(x.shape)
        array = array.astype(arrays.computed_as(array.dtype), copy=False)
        found = aligned.empty(array.shape, array.dtype)
        self._host(f"reduce an array of {x.shape}", arrays.reduce_all, array, found, operation)
        return jax.device_put(found).astype(x.dtype)

    def _reduce_compiled(self, x: jax.Array, operation: str) -> jax.Array:
        wide, op = x.astype(arrays.computed_as(x.dtype)), arrays.operation(operation)
        return self._mpi4jax().allreduce(wide, op, comm=self._comm).astype(x.dtype)

    def _mpi4jax(self) -> ModuleType:
        """The library whose operations a compiled program uses."""
        if self._devices > 1:
            raise NotImplementedError(
                f"A compiled program cannot join nodes of several devices, and this one has "
                f"{self._devices}. Call the operation outside of jax.jit, or start one rank for "
                "each device."
            )
        return import_mpi4jax()

    def gather(self, x: jax.Array, counts: Sequence[int], axis: int = 0) -> jax.Array:
        """Returns all nodes' rows of an axis, in the order of nodes."""
        if isinstance(x, Tracer):
            return self._gather_compiled(x, counts, axis)
        note(1, x.nbytes * (self.nodes - 1))
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        self._same(f"gather {tuple(counts)} {x.dtype} rows between {before} and {after}", x)
        shape = math.prod(before), sum(counts), math.prod(after)
        block = np.ascontiguousarray(x).reshape(shape[0], counts[self.node], shape[2])
        found = aligned.empty(shape, block.dtype)
        what = f"gather rows of {x.shape}"
        if shape[0] == 1:
            self._host(what, arrays.gather_all, block[0], found[0], counts)
        else:
            self._gather_pieces(what, block, found, counts)
        return jax.device_put(found.reshape(replaced(x.shape, axis, sum(counts))))

    def _gather_pieces(
        self, what: str, block: np.ndarray, found: np.ndarray, counts: Sequence[int]
    ) -> None:
        """Gathers along the middle one of three axes, some of the first's rows at a time."""
        ends = list(itertools.accumulate(counts, initial=0))
        for rows in pieces(len(found), math.prod(found.shape[1:]), itemsize=found.itemsize):
            mine, place = block[rows], found[rows]
            unit = len(mine) * mine.shape[2]
            room = np.empty((ends[-1], unit), found.dtype)
            mine = mine.reshape(counts[self.node], unit)
            self._host(what, arrays.gather_all, mine, room, counts)
            for begin, end in itertools.pairwise(ends):
                part = place[:, begin:end]
                part[...] = room[begin:end].reshape(part.shape)

    def _gather_compiled(self, x: jax.Array, counts: Sequence[int], axis: int) -> jax.Array:
        """Gathers as a sum of rows padded with zeros, which has a gradient."""
        widths = [(0, 0)] * x.ndim
        widths[axis] = sum(counts[: self.node]), sum(counts[self.node + 1 :])
        return self.reduce(jnp.pad(x, widths), "sum")

    def trade(self, sent: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
        """Sends an array to each node; returns the arrays that they sent here, of these shapes."""
        _refuse_compiled(*sent)
        note(1, sum(one.nbytes for node, one in enumerate(sent) if node != self.node))
        self._same(f"move {sent[0].dtype} rows", *sent)
        host = [np.asarray(one) for one in sent]
        with self._control.explained():
            request, kept, found = arrays.trade_all(self._comm, host, shapes)
            self._control.wait(request, "move rows between nodes", kept, found, most_pause=0)
        return found

    def move(self, x: jax.Array, sent: Ranges, shape: Shape, received: Ranges) -> jax.Array:
        """Sends a part of an array to each node; returns an array of the parts received."""
        _refuse_compiled(x)
        note(1, sent.elements(x.shape, but=self.node) * x.dtype.itemsize)
        self._same(f"lay {x.dtype} parts of axis {sent.axis} along axis {received.axis}", x)
        block, found = np.asarray(x), aligned.zeros(shape, x.dtype)
        for rows in arrays.rounds(x.shape, x.dtype.itemsize, sent, received):
            with self._control.explained():
                about = self._comm, block, sent, found, received, rows
                request, kept, pieces = arrays.trade_parts(*about)
                what = "move parts between nodes"
                self._control.wait(request, what, block, kept, pieces, most_pause=0)
            for place, piece in pieces:
                place[...] = piece
        return jax.device_put(found)

    def start_shift(self, x: jax.Array, shape: Shape) -> Callable[[], jax.Array]:
        """Starts to send to the node before this one; returns a wait for the next one's array."""
        note(1, x.nbytes)
        before, after = (self.node - 1) % self.nodes, (self.node + 1) % self.nodes
        if isinstance(x, Tracer):
            got = self._shift_compiled(x, shape, before, after)
            return lambda: got
        self._same(f"pass {x.dtype} blocks on", x)
        array, tag = np.asarray(x), next(self._tags) % 2**14
        found = aligned.empty(shape, array.dtype)
        with self._control.explained():
            requests = arrays.pass_on(self._comm, array, found, before, after, tag)

        def wait() -> jax.Array:
            for request in requests:
                self._control.wait(request, "pass a block on", array, found, most_pause=0)
            arrays.passed_on(found)
            return jax.device_put(found)

        return wait

    def _shift_compiled(self, x: jax.Array, shape: Shape, to: int, source: int) -> jax.Array:
        """Sends an array to a node and receives another; derivatives go the opposite way.

        mpi4jax's own derivative of this operation fails.
        """

        def shift(one: jax.Array, shape: Shape, to: int, source: int) -> jax.Array:
            room = jnp.zeros(shape, one.dtype)
            return self._mpi4jax().sendrecv(one, room, source, to, comm=self._comm)

        @jax.custom_vjp
        def forth(one: jax.Array) -> jax.Array:
            return shift(one, shape, to, source)

        forth.defvjp(
            lambda one: (forth(one), None),
            lambda _, derivative: (self._shift_compiled(derivative, x.shape, source, to),),
        )
        return forth(x.astype(arrays.computed_as(x.dtype))).astype(x.dtype)

    def numbers(self, own: np.ndarray) -> np.ndarray:
        """Returns the whole numbers of all nodes, ``[nodes, n]``, in 64 bits, on the host."""
        row = np.asarray(own, np.int64)[None]
        found = np.empty((self.nodes, row.size), row.dtype)
        note(1, row.nbytes * (self.nodes - 1))
        self._same(f"gather {row.size} counts")
        self._host("gather counts", arrays.gather_all, row, found, (1,) * self.nodes)
        return found

    def sums(self, own: np.ndarray) -> np.ndarray:
        """Returns the sums of all nodes' whole numbers, ``[n]``, in 64 bits, on the host."""
        row = np.ascontiguousarray(own, np.int64)
        found = np.empty_like(row)
        note(1, 2 * row.nbytes * self._others)
        self._same(f"add {row.size} counts")
        self._host("add counts", arrays.reduce_all, row, found, "sum")
        return found

    def texts(self, what: str, text: str) -> list[str]:
        """Returns the texts of all nodes."""
        return self._control.everyone(what, text)

    def _same(self, call: str, *given: Any) -> None:
        """Raises on all nodes unless all make the same call.

        Otherwise an operation would hang, or mix the data of two calls. All nodes get the same
        least and largest code, and so compare their calls together. These two numbers are sent
        besides the operation; `counted` leaves them out, like MPI's own headers.
        """
        jax.block_until_ready(given)  # a program that makes them may use the communicator
        code = zlib.crc32(call.encode())
        mine, both = np.array([code, -code]), np.empty(2, int)
        self._host(f"begin to {call}", arrays.reduce_all, mine, both, "max")
        if both[0] != -both[1]:
            self._control.agree(call, [])

    @property
    def _others(self) -> float:
        return (self.nodes - 1) / self.nodes

    def _host(
        self, what: str, start: Callable[..., Any], array: np.ndarray, found: np.ndarray, *rest: Any
    ) -> None:
        """Starts an operation of MPI and waits for its result in `found`."""
        with self._control.explained():
            request = start(self._comm, array, found, *rest)
            self._control.wait(request, what, array, found, most_pause=0)


def _refuse_compiled(*given: Any) -> None:
    if any(isinstance(one, Tracer) for one in given):
        raise NotImplementedError(
            "This operation along the split moves a different number of rows to each node, which a "
            "compiled program cannot do. Call it outside of jax.jit (docs/arrays.md, Sharp bits, "
            "lists such operations)."
        )
