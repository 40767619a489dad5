"""The clock of a workload: each iteration on its own, and the bytes at the interfaces."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from ..factors import FEWEST
from . import _interfaces
from ._gathering import gathered


@runtime_checkable
class Transport(Protocol):
    """All that the clock asks of a transport."""

    rank: int
    size: int

    def barrier(self) -> None:
        """Waits for all nodes."""

    def slowest(self, seconds: list[float]) -> list[float]:
        """Returns, for each iteration, the time of the slowest node."""
        ...

    def chosen(self) -> dict[str, Any]:
        """Returns choices that the library reports."""
        ...


def measure(
    meeting: Transport,
    iteration: Callable[[], object],
    expected_bytes: int,
    settings: dict[str, Any],
    *,
    parts: int = 1,
    compute_seconds: list[float] | None = None,
    sent: Callable[[], int] = lambda: 0,
    communicated: Callable[[], float] | None = None,
) -> dict[str, Any]:
    """Measures an operation; returns the result of the workload, the same on all nodes.

    Before each iteration all nodes meet; its time is that of the slowest node. Each node counts
    the bytes at its own interfaces.

    Args:
        meeting: the transport.
        iteration: the operation.
        expected_bytes: the fewest bytes that this node must send and receive in one iteration.
        settings: ``warmup`` and ``iterations``, and ``most_seconds`` of the measured ones: as many
            as fit into them, by the time of the first, but at least `FEWEST`; half as many seconds
            of warm-up.
        parts: divides the time of an iteration: messages of a window, both ways.
        compute_seconds: of the same work without a network.
        sent: returns the bytes that this node has sent so far, by the library's own count; those of
            all iterations are expected too.
        communicated: returns the seconds of this node's communication so far, hidden or not.
    """
    meeting.barrier()
    before, sent_before = _interfaces.counts(), sent()
    most = settings.get("most_seconds", math.inf)
    told = communicated or (lambda: 0.0)
    warm, _ = _series(meeting, iteration, settings["warmup"], most / 2, told)
    spent, talked = _series(meeting, iteration, settings["iterations"], most, told)
    meeting.barrier()
    crossed = _interfaces.between(before, _interfaces.counts())
    expected = expected_bytes * len(warm + spent) + sent() - sent_before
    nodes = gathered(meeting, {"bytes_at_interfaces": crossed, "expected_bytes": expected})

    def slowest(seconds: list[float]) -> list[float]:
        return [one / parts for one in meeting.slowest(seconds)]

    return {
        "seconds": slowest(spent),
        "warmup_seconds": slowest(warm),
        "compute_seconds": compute_seconds,
        "communication_seconds": slowest(talked) if communicated else None,
        **nodes[0],
        "other_nodes": nodes[1:],
        "chosen": meeting.chosen(),
    }


def _series(
    meeting: Transport,
    iteration: Callable[[], object],
    count: int,
    most_seconds: float,
    told: Callable[[], float],
) -> tuple[list[float], list[float]]:
    """Times `count` iterations, or as many as fit; all nodes find the same number."""
    spent = [_timed(meeting, iteration, told) for _ in range(min(count, 1))]
    if spent and most_seconds < math.inf:
        room = int(most_seconds / max(meeting.slowest([spent[0][0]])[0], 1e-9))
        count = min(count, max(FEWEST, room))
    spent += [_timed(meeting, iteration, told) for _ in range(count - 1)]
    return [seconds for seconds, _ in spent], [seconds for _, seconds in spent]


def _timed(
    meeting: Transport, iteration: Callable[[], object], told: Callable[[], float]
) -> tuple[float, float]:
    """Seconds of an iteration, and those of its communication."""
    meeting.barrier()
    before, begin = told(), time.perf_counter()
    iteration()
    return time.perf_counter() - begin, told() - before
