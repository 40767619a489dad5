"""Polls requests until they are done, fail or reach a limit; gathers texts."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")

_unfinished: list[Any] = []
"""Abandoned requests with their data: MPI may still write there, even if a node is gone."""

_SPIN_SECONDS = 2e-3
"""Time in which a poll without pauses yields its core only to threads ready to run."""

MESSAGE_BYTES = 120 * 2**10
"""Bytes of a message: less than the 128 KiB at which UCX changes to rendezvous (`start`)."""


def as_bytes(array: np.ndarray, at: int | None = None) -> list[Any]:
    """An array as MPI takes it, or one message's part of it."""
    from mpi4py import MPI

    whole = array.view(np.uint8)
    return [whole if at is None else whole[at : at + MESSAGE_BYTES], MPI.BYTE]


def poll(
    done: Callable[[], Result],
    check: Callable[[], object] = lambda: None,
    limit_seconds: float = math.inf,
    most_pause: float = 2e-3,
) -> Result | None:
    """Calls `done` at growing intervals until its result is true; None once the limit has passed.

    `check` is called in between and may raise. MPI moves bytes only when it is polled: a pause of
    more than `most_pause` seconds would slow it down. With 0 there is no pause, nor a check, in the
    first milliseconds: even a sleep of 0 s takes some 70 us on Linux.
    """
    begin, pause = time.perf_counter(), min(1e-5, most_pause)
    while not (result := done()):
        waited = time.perf_counter() - begin
        if waited > limit_seconds:
            return None
        if most_pause == 0 and waited < _SPIN_SECONDS:
            os.sched_yield()
            continue
        check()
        time.sleep(pause)
        pause = min(pause * 2, most_pause)
    return result


def finish(
    request: Any,
    check: Callable[[], object],
    *data: Any,
    limit_seconds: float = math.inf,
    most_pause: float = 2e-3,
) -> bool:
    """Polls a request; if that ends before the request is done, keeps its `data` for MPI."""
    done = False
    try:
        done = bool(poll(request.Test, check, limit_seconds, most_pause))
    finally:
        if not done:
            _unfinished.append((request, data))
    return done


def allgather_bytes(gather: Callable[[np.ndarray], np.ndarray], payload: bytes) -> list[bytes]:
    """The payloads of all nodes; `gather` returns the rows of all nodes for arrays of one shape."""
    sizes = gather(np.array([len(payload)], np.int64))[:, 0]
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(payload)] = np.frombuffer(payload, np.uint8)
    return [row[:size].tobytes() for row, size in zip(gather(padded), sizes, strict=True)]


def byte() -> Any:
    """MPI's datatype for bytes."""
    from mpi4py import MPI

    return MPI.BYTE


def mpi_error() -> type[Exception]:
    """The class of MPI's own errors."""
    from mpi4py import MPI

    return MPI.Exception
