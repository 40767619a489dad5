"""Engine ``mpi4py``: non-blocking MPI on NumPy buffers, polled with a back-off.

Several chunks are on the wire at once. While one is summed, earlier ones are gathered and later
ones still arrive, so that the link never idles: reducing one chunk after another leaves the link
idle for a third of the time (4 hosts at 1 Gbit/s). Chunks become ready in another order on each
node, and MPI needs the collectives of a communicator in the same order on all nodes. So there are
two communicators: one on which chunks are scattered in order, one on which they are gathered.

On slow links rows do not travel by collectives but as many messages, each small enough for MPI to
send it at once. MPI first announces a larger message, and sends it when the receiver asks; over TCP
that request waits behind everything on the wire, and links idle (MPICH 5.0.2: for a sixth of the
time, at 1 Gbit/s). Fast links idle for less time than small messages cost.

MPI moves bytes over TCP only when it is polled. So the channel's thread does nothing else; helpers
scan rows before they are sent, and sum arrived ones, without Python's lock.

Errors are raised and do not abort; every wait can be left when another node fails.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from .._base.errors import NodeError
from .._mpi.requests import MESSAGE_BYTES, as_bytes
from .._payload.wire import Wire
from . import recycled
from .base import SumRows, Work, heads_of

WINDOW = 4
"""Chunks that are scattered at once; each needs a receive buffer."""

_LEAST_PAUSE, _MOST_PAUSE, _MOST_PAUSE_SLOW = 2e-5, 5e-4, 5e-3
"""Seconds between two polls: 0.5 ms at 10 Gbit/s drain less than a socket's buffer holds."""

_DRAINED_BYTES = 160 * 2**10
"""Bytes that a slow link may drain between two polls, with more than two nodes; with two, all bytes
use one connection, which would then idle. A poll moves the bytes of all exchanges."""

SLOW_LINK = 4e8
"""Bytes per second; at 2.5 Gbit/s messages are faster, at 5 Gbit/s collectives."""

_LEAVE_SECONDS = 10.0
"""Limit for a helper's last call, a copy or a sum."""

_polling: set[Mpi4pyReducer] = set()
"""Reducers of this process that have an exchange in flight."""


class Chunk(NamedTuple):
    """A chunk on the wire, with the buffers that MPI reads and writes."""

    k: int
    request: Any
    sends: Any
    receives: np.ndarray
    residual: np.ndarray | None = None
    heads: np.ndarray | None = None


class Transfers:
    """Messages in flight; polled like one MPI request, the last of them first."""

    def __init__(self, requests: Iterable[Any] = (), size: int = 0):
        self.open, self._size = list(requests), size  # bytes of each

    @property
    def left(self) -> int:
        """Number of messages still in flight, as of the last poll."""
        return len(self.open)

    @property
    def nbytes(self) -> int:
        """Bytes still in flight, as of the last poll."""
        return len(self.open) * self._size

    def Test(self) -> bool:  # noqa: N802
        """Returns whether all have been sent and received."""
        while self.open and self.open[-1].Test():
            self.open.pop()
        return not self.open


def _exchange_rows(
    comm: Any, sends: Sequence[np.ndarray] | np.ndarray, receives: np.ndarray
) -> Transfers:
    """Starts sending row p of `sends` to node p, and receiving row p of `receives` from it."""
    node, nodes = comm.Get_rank(), comm.Get_size()
    others = [(node + k) % nodes for k in range(1, nodes)]  # not all to the same node at once
    parts, sources = range(0, receives[0].nbytes, MESSAGE_BYTES), others[::-1]
    requests = [comm.Irecv(as_bytes(receives[k], at), k) for at in parts for k in sources]
    requests += [comm.Isend(as_bytes(sends[k], at), k) for at in parts for k in others]
    return Transfers(requests[::-1], min(MESSAGE_BYTES, receives[0].nbytes))


class _Helper:
    """A thread that makes calls in the background, one after another.

    The executors of `concurrent.futures` refuse calls once the interpreter begins to exit, while
    exchanges that the program has forgotten still have to be completed.

    The thread keeps nothing of a call, and is joined when it ends: a thread that releases a JAX
    array while the interpreter exits makes the process abort.

    Args:
        report: called after each call.
    """

    def __init__(self, report: Callable[[], None]):
        self._report = report
        self._calls: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="jdaso-helper", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Enqueues a call; returns a future of its result."""
        future = Future()
        self._calls.put((future, function, arguments))
        return future

    def close(self) -> None:
        """Ends the thread after the calls that are enqueued."""
        self._calls.put(None)
        self._thread.join(timeout=_LEAVE_SECONDS)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            self._make(*call)
            del call

    def _make(self, future: Future[Any], function: Callable[..., Any], arguments: Any) -> None:
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        self._report()


class Mpi4pyReducer:
    """All-to-all, sum and all-gather of an exchange's chunks, overlapped."""

    def __init__(
        self,
        comms: tuple[Any, Any],
        wire: Wire,
        sums: SumRows,
        check: Callable[[], None],
        limit_seconds: float,
        bytes_per_second: float,
    ):
        from mpi4py import MPI

        for comm in comms:
            comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._scatter, self._gather = comms
        self._node = comms[0].Get_rank()
        self._wire, self._sums = wire, sums
        self._check, self._limit = check, limit_seconds
        self._slow = bytes_per_second < SLOW_LINK
        self._bytes_per_second = bytes_per_second
        self._received: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        self._scattered: deque[Chunk] = deque()
        self._gathered: deque[Chunk] = deque()
        self._helped = threading.Event()
        self._taker, self._summer = (_Helper(self._helped.set) for _ in range(2))

    def close(self) -> None:
        """Ends the helpers."""
        self._taker.close()
        self._summer.close()

    def __call__(self, work: Work) -> None:
        """Reduces all chunks of an exchange.

        Raises:
            NodeError: the exchange did not end in time, or an earlier one never ended: MPI may
                still deliver data of that one, which must not be taken for this one's.
        """
        if self._scattered or self._gathered:
            raise NodeError(
                "The exchange before this one did not end, so this one cannot begin. Close the "
                "session; its first error gives the cause."
            )
        _polling.add(self)
        try:
            self._reduce(work)
        finally:
            _polling.discard(self)
        self._received.clear()

    def _reduce(self, work: Work) -> None:
        taken = given = 0
        taking: Future[np.ndarray] | None = None
        summing: Future[Any] | None = None
        since, pause = time.perf_counter(), _LEAST_PAUSE
        while given < work.count:
            moved, left = False, self._left
            if taking is None and taken < work.count and len(self._scattered) < WINDOW:
                if work.ready(taken):
                    taking, moved = self._taker.submit(work.take, taken, 0.0), True
            elif taking is not None and taking.done():
                rows, taking = taking.result(), None
                self._start_scatter(taken, rows)
                taken, moved = taken + 1, True
            if summing is None and self._scattered and self._scattered[0].request.Test():
                chunk = self._scattered[0]
                place = work.place(chunk.k)
                summing, moved = self._summer.submit(self._sum, chunk.receives, place), True
            elif summing is not None and summing.done():
                summed, summing = summing.result(), None
                chunk = self._scattered.popleft()
                headed = chunk.k == work.count - 1
                self._start_gather(chunk, summed, work.place(chunk.k), headed)
                moved = True
            elif summing is not None:
                # Testing an open request makes MPI advance all of them; testing a done one, none.
                all(chunk.request.Test() for chunk in self._scattered)
            if self._gathered and self._gathered[0].request.Test():
                chunk = self._gathered.popleft()
                assert chunk.residual is not None
                work.give(chunk.k, chunk.residual, chunk.heads)
                given, moved = given + 1, True
            if moved or self._left < left:
                since = time.perf_counter()
            if moved or (self._left < left and self._bytes_per_second >= SLOW_LINK):
                pause = _LEAST_PAUSE
                continue
            self._check()
            if time.perf_counter() - since > self._limit:
                raise NodeError(
                    f"An exchange did not end within {self._limit:g} s. Look for a node that is "
                    "stuck; raise Session(timeout_seconds=...) if one is only slow."
                )
            self._helped.wait(pause)
            self._helped.clear()
            pause = min(2 * pause, self._most_pause)

    @property
    def _most_pause(self) -> float:
        """The longest pause between two polls.

        On a slow link, the time to drain a poll's share, or all that is left.
        """
        if not self._slow:
            return _MOST_PAUSE
        share = _DRAINED_BYTES * len(_polling) if self._scatter.Get_size() > 2 else 0
        seconds = min(share, sum(x.request.nbytes for x in self._on_wire)) / self._bytes_per_second
        return min(max(seconds, _MOST_PAUSE), _MOST_PAUSE_SLOW)

    @property
    def _left(self) -> int:
        """Messages in flight, on slow links."""
        return sum(chunk.request.left for chunk in self._on_wire) if self._slow else 0

    @property
    def _on_wire(self) -> tuple[Chunk, ...]:
        return (*self._scattered, *self._gathered)

    def _sum(self, receives: np.ndarray, place: np.ndarray) -> Any:
        """Sums received rows into this node's row of the place; returns the rounding error."""
        return self._sums(receives, place[self._node])

    def _start_scatter(self, k: int, rows: np.ndarray) -> None:
        key = (k % WINDOW, rows.shape)
        if key not in self._received:
            self._received[key] = recycled.empty(rows.shape, rows.dtype)
        received = self._received[key]
        if self._slow:
            np.copyto(received[self._node], rows[self._node])
            request = _exchange_rows(self._scatter, rows, received)
        else:
            request = self._scatter.Ialltoall(as_bytes(rows), as_bytes(received))
        self._scattered.append(Chunk(k, request, rows, received))

    def _start_gather(self, chunk: Chunk, summed: Any, place: np.ndarray, headed: bool) -> None:
        from mpi4py import MPI

        heads = heads_of(self._wire, chunk.receives) if headed else None
        if self._slow:
            request = _exchange_rows(self._gather, [place[self._node]] * len(place), place)
        else:
            request = self._gather.Iallgather(MPI.IN_PLACE, as_bytes(place))
        self._gathered.append(Chunk(chunk.k, request, place, place, summed, heads))
