"""Engine ``mpi4jax`` on slow links: lanes, threads that make blocking calls side by side.

Each chunk passes through four lanes. Two scatter it, so that each node gets its row from all nodes:
one sends, one receives. The channel's thread sums the rows. Two more lanes gather the sums. So
chunk k is gathered while k + 1 is summed and k + 2 is scattered. A lane that only sends keeps the
link busy; one that sends and receives in turn waits for its partner after each message.

Rows travel as many small messages, one to each node in turn (see `mpi4py`): all links of a node
are in use, and MPI sends them at once. The lanes of a pair share a communicator that no other lane
uses.

All nodes share one order: a lane takes chunk after chunk, within a chunk piece after piece, and
within a piece node after node: to the next node and from the one before, then to the one after the
next, and so on. So message t that a lane sends is message t that the other node's lane receives.
Without the order there are deadlocks:

    Chunks as they come. Node 0 has summed chunk 1 first, node 1 chunk 0. Node 0 waits to receive
    chunk 1 from node 1. Node 1 sends chunk 0, and MPI may hold it back until node 0 asks for it,
    which node 0 would do after chunk 1: for ever. If MPI does not hold chunk 0 back, node 0 takes
    the sums of chunk 0 for those of chunk 1.

    One lane for both directions. Nodes 0 and 1 send to each other; MPI holds both messages back
    until they are asked for, and neither node reaches its receive.

    One lane to scatter and gather. Node 0 gathers chunk 0 and waits for the sums of node 1, whose
    lane scatters chunk 1 and waits for node 0.

With the order there is none, even if MPI holds every message back: of all messages of a pair of
lanes that have not arrived, take the first in the order. Its sender and its receiver are done with
all messages before it, so both are in its call. Scattering waits for nothing else; gathering waits
for sums, whose chunks are scattered without it.

Each lane has a CPU client of its own (`lane_device`). With one for all, the programs of waiting
lanes hold the few threads of its pool, and the program that another node waits for never runs: six
lanes on two cores have hung.

A waiting lane polls, and so takes processor time from whatever computes on the host.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._base.errors import NodeError
from .._jax.cpus import lane_device
from .._mpi.requests import MESSAGE_BYTES
from .._payload.wire import Wire
from . import recycled
from .base import SumRows, Work, heads_of
from .mpi4jax import import_mpi4jax

WINDOW = 4
"""Chunks that are scattered at once; each needs a receive buffer."""

_LEAST_PAUSE, _MOST_PAUSE = 5e-4, 5e-2
"""Seconds between two checks for the next chunk to send, and for failures once all are sent."""

_LEAVE_SECONDS = 10.0
"""Limit for a lane's last call: longer than `Channel.close` waits after an error, so that `close`
notices a lane that is stuck in MPI."""


def _by_piece(size: int, turn: Callable[[Any, int, Any], Any], carry: Any) -> Any:
    """Calls ``turn(begin, width, carry)`` for each message's part of `size` bytes, in order."""
    pieces, rest = divmod(size, MESSAGE_BYTES)
    if pieces:  # a loop: an unrolled program would take seconds to compile
        carry = jax.lax.fori_loop(
            0, pieces, lambda i, x: turn(i * MESSAGE_BYTES, MESSAGE_BYTES, x), carry
        )
    return turn(pieces * MESSAGE_BYTES, rest, carry) if rest else carry


class _Peers:
    """The programs of a pair of lanes; messages are bytes on any wire."""

    def __init__(self, comm: Any):
        self._mpi4jax, self._comm = import_mpi4jax(), comm
        self.node, self.nodes = comm.Get_rank(), comm.Get_size()
        self.send = jax.jit(self._send)
        self.receive = jax.jit(self._receive, static_argnums=0)
        around = range(1, self.nodes)
        self.targets = [(self.node + d) % self.nodes for d in around]
        self.sources = [(self.node - d) % self.nodes for d in around]

    def _send(self, rows: Any) -> Any:
        """Sends row p of `rows` to node p, or a single row to all; returns when all are sent."""

        def turn(begin: Any, width: int, carry: Any) -> Any:
            for node in self.targets:
                row = node if rows.shape[0] == self.nodes else 0
                piece = jax.lax.dynamic_slice(rows, (row, begin), (1, width))
                self._mpi4jax.send(piece, node, comm=self._comm)
            return carry

        return _by_piece(rows.shape[1], turn, jnp.int32(0))

    def _receive(self, size: int) -> tuple[Any, ...]:
        """Receives a row of `size` bytes from each of `sources`."""

        def turn(begin: Any, width: int, rows: tuple[Any, ...]) -> tuple[Any, ...]:
            found = []
            for row, node in zip(rows, self.sources, strict=True):
                like = jnp.empty(width, jnp.uint8)
                piece = self._mpi4jax.recv(like, node, comm=self._comm)
                found.append(jax.lax.dynamic_update_slice(row, piece, (begin,)))
            return tuple(found)

        return _by_piece(size, turn, tuple(jnp.empty(size, jnp.uint8) for _ in self.sources))


class _Lane:
    """A thread that makes calls, one after another, with a CPU device of its own.

    Reports each call's end, or its error, and keeps nothing of a call (see `mpi4py`).
    """

    def __init__(self, name: str, report: Callable[[Any], None]):
        self.device, self._report = lane_device(), report
        self._calls: queue.SimpleQueue[tuple[Any, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"jdaso-{name}", daemon=True)
        self._thread.start()

    def submit(self, what: Any, call: Callable[[], None]) -> None:
        """Enqueues a call; `what` is reported when it has ended."""
        self._calls.put((what, call))

    def end(self) -> None:
        """Ends the thread after the calls that are enqueued; does not wait."""
        self._calls.put(None)

    def join(self, limit_seconds: float) -> None:
        """Waits for the thread's end."""
        self._thread.join(timeout=limit_seconds)

    def _run(self) -> None:
        with jax.default_device(self.device):
            while (enqueued := self._calls.get()) is not None:
                what, call = enqueued
                try:
                    call()
                except Exception as error:
                    what = error
                del enqueued, call
                self._report(what)


class _Pair:
    """Two lanes: one sends rows to all other nodes, one receives theirs."""

    def __init__(self, comm: Any, name: str, report: Callable[[Any], None]):
        self._peers, self._name = _Peers(comm), name
        self._sender, self._receiver = (_Lane(f"{name}-{end}", report) for end in ("out", "in"))
        self.lanes = self._sender, self._receiver

    def start(self, k: int, rows: np.ndarray, received: np.ndarray) -> None:
        """Sends `rows`, one for each node or one for all; receives into the rows of `received`.

        Both lanes report ``(name, k)``.
        """
        peers, device = self._peers, self._sender.device

        def send() -> None:
            peers.send(jax.device_put(rows.view(np.uint8), device)).block_until_ready()

        def receive() -> None:
            target = received.view(np.uint8)
            for node, row in zip(peers.sources, peers.receive(target.shape[1]), strict=True):
                np.copyto(target[node], row)

        self._sender.submit((self._name, k), send)
        self._receiver.submit((self._name, k), receive)


class _Chunk(NamedTuple):
    """A chunk in flight; the last two fields are set once the chunk is summed."""

    rows: np.ndarray
    received: np.ndarray
    residual: np.ndarray | None = None
    heads: np.ndarray | None = None


class LanesReducer:
    """All-to-all, sum and all-gather of an exchange's chunks, by lanes.

    On failure: MPI errors end the job on all nodes at once; mpi4jax cannot return them. Other
    errors of a lane are raised; the lanes of the other nodes then wait in MPI, and these waits end
    like those for any failed node.
    """

    def __init__(
        self,
        comms: tuple[Any, Any],
        wire: Wire,
        sums: SumRows,
        check: Callable[[], None],
        limit_seconds: float,
    ):
        self._node = comms[0].Get_rank()
        self._wire, self._sums = wire, sums
        self._check, self._limit = check, limit_seconds
        self._ends: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._scatter = _Pair(comms[0], "scatter", self._ends.put)
        self._gather = _Pair(comms[1], "gather", self._ends.put)
        self._received: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        self._flying: dict[int, _Chunk] = {}

    def close(self) -> None:
        """Ends the lanes."""
        lanes = (*self._scatter.lanes, *self._gather.lanes)
        for lane in lanes:
            lane.end()
        for lane in lanes:
            lane.join(_LEAVE_SECONDS)

    def __call__(self, work: Work) -> None:
        """Reduces all chunks of an exchange.

        Raises:
            NodeError: the exchange did not end in time, or an earlier one never ended: its lanes
                may still be inside MPI.
        """
        if self._flying:
            raise NodeError(
                "The exchange before this one did not end, so this one cannot begin. Close the "
                "session; its first error gives the cause."
            )
        taken = summed = given = 0
        left: dict[tuple[str, int], int] = {}  # lanes that still move a chunk
        since = time.perf_counter()
        while given < work.count:
            open_for_more = taken < work.count and taken - summed < WINDOW
            if open_for_more and work.ready(taken):
                self._start_scatter(taken, work.take(taken, 0.0))
                left["scatter", taken] = left["gather", taken] = 2
                taken, since = taken + 1, time.perf_counter()
                continue
            try:
                end = self._ends.get(timeout=_LEAST_PAUSE if open_for_more else _MOST_PAUSE)
            except queue.Empty:
                self._look(since)
                continue
            if isinstance(end, Exception):
                raise end
            left[end] -= 1
            since = time.perf_counter()
            while summed < taken and not left["scatter", summed]:
                self._sum(work, summed)
                summed += 1
            while given < summed and not left["gather", given]:
                chunk = self._flying.pop(given)
                assert chunk.residual is not None
                work.give(given, chunk.residual, chunk.heads)
                given += 1
        self._received.clear()

    def _look(self, since: float) -> None:
        """Raises if the wait cannot succeed, or takes too long."""
        self._check()
        if time.perf_counter() - since > self._limit:
            raise NodeError(
                f"An exchange did not end within {self._limit:g} s. Look for a node that is "
                "stuck; raise Session(timeout_seconds=...) if one is only slow."
            )

    def _start_scatter(self, k: int, rows: np.ndarray) -> None:
        key = (k % WINDOW, rows.shape)
        if key not in self._received:
            self._received[key] = recycled.empty(rows.shape, rows.dtype)
        received = self._received[key]
        np.copyto(received[self._node], rows[self._node])
        self._flying[k] = _Chunk(rows, received)
        self._scatter.start(k, rows, received)

    def _sum(self, work: Work, k: int) -> None:
        """Sums chunk k, all of which has arrived, and starts to gather its sums."""
        chunk, place = self._flying[k], work.place(k)
        residual = self._sums(chunk.received, place[self._node])
        heads = heads_of(self._wire, chunk.received) if k == work.count - 1 else None
        self._flying[k] = chunk._replace(residual=residual, heads=heads)
        self._gather.start(k, place[self._node : self._node + 1], place)
