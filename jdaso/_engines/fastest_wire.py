"""The wire whose exchanges are the shortest on this host and these links: ``wire="auto"``."""

from __future__ import annotations

import time

import numpy as np

from .._payload.layout import BLOCK
from .._payload.wire import WIRES, Wire
from .passes import passes_of

_NUMBERS, _TRIALS = 2**18, 3
"""Numbers that are encoded to measure a wire, and the number of trials."""

ADVANTAGE = 0.8
"""The longest time of a narrower wire as a share of a wider one's: encoding takes cores."""


def host_seconds_of(wire: Wire, nodes: int) -> float:
    """Measures the seconds of one node for each number on a wire: to encode, sum and decode.

    Args:
        wire: the wire format.
        nodes: P; each node sums 1/P of the numbers.
    """
    width = -(-_NUMBERS // nodes // BLOCK) * BLOCK
    numbers = np.random.default_rng(0).standard_normal((nodes, width), np.float32)
    passes, rows = passes_of(wire), np.zeros((nodes, wire.encoded_width(width)), wire.dtype)
    part = np.zeros_like(rows[0])

    def handle() -> None:
        if wire.narrow:
            passes.encode(numbers, rows)
        passes.total(rows, part)
        if wire.narrow:
            passes.decode(np.broadcast_to(part, (nodes, part.size)), numbers)

    handle()  # compiles
    seconds = []
    for _ in range(_TRIALS):
        begin = time.perf_counter()
        handle()
        seconds.append(time.perf_counter() - begin)
    return min(seconds) / numbers.size


def seconds_per_number(
    wire: Wire, nodes: int, bytes_per_second: float, host_seconds: float
) -> float:
    """The time of an exchange per number: ``2 (P - 1) / P`` of its bytes on the link, and hosts.

    Args:
        wire: the wire format.
        nodes: P.
        bytes_per_second: rate of the slowest link.
        host_seconds: seconds of the slowest host for each number.
    """
    return 2 * (nodes - 1) / nodes * wire.bytes_per_number / bytes_per_second + host_seconds


def fastest(nodes: int, bytes_per_second: float, host_seconds: dict[str, float]) -> Wire:
    """The wire with the shortest exchange; the widest of those that are about as short.

    Args:
        nodes: P.
        bytes_per_second: rate of the slowest link.
        host_seconds: seconds of the slowest host for each number, by wire.
    """
    chosen = WIRES["float32"]
    least = seconds_per_number(chosen, nodes, bytes_per_second, host_seconds[chosen.name])
    for name in host_seconds:
        seconds = seconds_per_number(WIRES[name], nodes, bytes_per_second, host_seconds[name])
        if seconds < ADVANTAGE * least:
            chosen, least = WIRES[name], seconds
    return chosen
