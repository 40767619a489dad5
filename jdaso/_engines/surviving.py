"""Engine ``mpi4py`` for runs that survive failed nodes: the others repeat an exchange.

All data of the exchange is still where it was enqueued, so that not even that exchange is lost. The
rows that the failed node would have summed are divided among the living; the failed node counts as
a node of weight 0, so that no program is compiled anew.

Rows travel as messages, since one node's part of a collective cannot be divided. Results are given
once all have agreed that the exchange succeeded on all of them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .._base.errors import NodeError
from .._mpi.requests import as_bytes, poll
from .._mpi.ulfm import Group
from .._payload.wire import Wire
from .._payload.words import bury
from . import recycled
from .base import SumRows, Work, heads_of
from .mpi4py import WINDOW, Chunk, Mpi4pyReducer, Transfers
from .passes import passes_of

_DRAIN_SECONDS = 5.0
"""Time for requests of a revoked communicator to end."""


class _Results:
    """A `Work` whose results are kept until it is certain that nothing must be repeated."""

    def __init__(self, work: Work):
        self.count, self.ready = work.count, work.ready
        self.take, self.place = work.take, work.place
        self.given: list[tuple[int, np.ndarray, np.ndarray | None]] = []

    def give(self, k: int, residual: np.ndarray, heads: np.ndarray | None) -> None:
        """See `Work`."""
        self.given.append((k, residual, heads))


class SurvivingReducer(Mpi4pyReducer):
    """All-to-all, sum and all-gather by messages, among the living nodes."""

    def __init__(
        self,
        group: Group,
        nodes: int,
        wire: Wire,
        sums: SumRows,
        check: Callable[[], None],
        limit_seconds: float,
    ):
        def look() -> None:
            check()
            group.look()

        comms = group.comm, group.comm
        super().__init__(comms, wire, sums, look, limit_seconds, math.inf)
        self._group, self._outside_check = group, check
        self._nodes, self._node = nodes, group.living[group.comm.Get_rank()]
        self._slow = True  # the count of messages in flight shows whether anything moves
        self._requests: list[Any] = []  # of this attempt
        # Rounding errors of a failed node's rows that this node sums, by chunk and row: those of
        # the last exchange, which the next one adds; and those of this attempt.
        self._residuals: dict[tuple[int, int], np.ndarray] = {}
        self._next_residuals: dict[tuple[int, int], np.ndarray] = {}
        self._passes = passes_of(wire)

    def __call__(self, work: Work) -> None:
        """Reduces all chunks of an exchange; see `Mpi4pyReducer`."""
        checks = lambda: self._outside_check  # noqa: E731  (waits for exchanges have a limit)
        results = self._group.together(partial(self._attempt, work), checks, self._drain)
        self._requests.clear()
        self._residuals = self._next_residuals
        for k, residual, heads in results.given:
            work.give(k, residual, heads)

    def _attempt(self, work: Work) -> _Results:
        results, self._next_residuals = _Results(work), {}
        super().__call__(results)
        return results

    def _drain(self) -> None:
        """Ensures that no request of a revoked communicator still writes to our memory."""
        from mpi4py import MPI

        limit = time.perf_counter() + _DRAIN_SECONDS
        for request in self._requests:
            with contextlib.suppress(MPI.Exception):  # expected: the communicator was revoked
                left = limit - time.perf_counter()
                if not poll(request.Test, lambda: None, left, 1e-4):
                    raise NodeError("MPI keeps requests of an exchange that lost a node.")
        self._requests.clear()
        self._scattered.clear()
        self._gathered.clear()
        self._received.clear()

    @property
    def _others(self) -> list[int]:
        """The other living nodes, from the next one on: each node begins with a different one."""
        living = self._group.living
        at = living.index(self._node)
        return [*living[at + 1 :], *living[:at]]

    @property
    def _owners(self) -> list[int]:
        """The node that sums each row."""
        living = self._group.living
        return [k if k in living else living[k % len(living)] for k in range(self._nodes)]

    @property
    def _mine(self) -> list[int]:
        """Rows that this node sums, its own first."""
        dealt = [k for k, owner in enumerate(self._owners) if owner == self._node]
        return [self._node, *(k for k in dealt if k != self._node)]

    def _start_scatter(self, k: int, rows: np.ndarray) -> None:
        key, mine = (k % WINDOW, rows.shape), self._mine
        if key not in self._received:
            self._received[key] = recycled.empty((len(mine), *rows.shape), rows.dtype)
        received = self._received[key]
        received[:, [k for k in range(self._nodes) if k not in self._group.living]] = 0
        messages = Transfers()
        for own, row in zip(received, mine, strict=True):
            np.copyto(own[self._node], rows[row])
            if (residual := self._residuals.get((k, row))) is not None:
                # Replaces the failed node's data.
                self._passes.encode(residual[None], own[row][None])
            for other in self._others:
                self._receive(messages, own[other], other, 2 * row)
        for other in self._others:
            for row in (row for row, owner in enumerate(self._owners) if owner == other):
                self._send(messages, rows[row], other, 2 * row)
        self._scattered.append(Chunk(k, messages, rows, received))

    def _sum(self, receives: np.ndarray, place: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The sums of all rows that this node sums, and their rounding errors.

        A sum of an attempt that failed must not reach the place: rows arrive there again.
        """
        totals = [recycled.empty(row.shape, row.dtype) for row in place[: len(receives)]]
        return [(x, self._sums(rows, x)) for rows, x in zip(receives, totals, strict=True)]

    def _start_gather(self, chunk: Chunk, summed: Any, place: np.ndarray, headed: bool) -> None:
        heads = None
        if headed:
            heads = bury(heads_of(self._wire, chunk.receives[0]), self._group.living)
        messages, owners = Transfers(), self._owners
        for row, (total, _) in zip(self._mine, summed, strict=True):
            np.copyto(place[row], total)
            for other in self._others:
                self._send(messages, total, other, 2 * row + 1)
        for row, owner in enumerate(owners):
            if owner != self._node:
                self._receive(messages, place[row], owner, 2 * row + 1)
        residual, *others = (lost for _, lost in summed)
        if self._wire.narrow:
            dealt = zip(self._mine[1:], others, strict=True)
            self._next_residuals |= {(chunk.k, row): lost for row, lost in dealt}
        self._gathered.append(Chunk(chunk.k, messages, summed, place, residual, heads))

    def _send(self, messages: Transfers, data: np.ndarray, node: int, tag: int) -> None:
        self._note(messages, self._group.comm.Isend(as_bytes(data), self._group.rank(node), tag))

    def _receive(self, messages: Transfers, data: np.ndarray, node: int, tag: int) -> None:
        self._note(messages, self._group.comm.Irecv(as_bytes(data), self._group.rank(node), tag))

    def _note(self, messages: Transfers, request: Any) -> None:
        messages.open.append(request)
        self._requests.append(request)
