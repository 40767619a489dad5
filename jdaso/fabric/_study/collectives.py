"""Operations of micro-benchmarks: rounds and bytes of their algorithms, factors of bus bandwidth.

``S`` is the factor "bytes" as nccl-tests define a size: the whole array of a node, also where each
node contributes or receives only a P-th part (all-gather, reduce-scatter). Seconds are those of one
operation; between two nodes those of one message, one way.

References: Thakur, Rabenseifner and Gropp, International Journal of High Performance Computing
Applications 19 (2005); Patarasuk and Yuan, Journal of Parallel and Distributed Computing 69 (2009);
nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Algorithm(NamedTuple):
    """One algorithm of an operation.

    Attributes:
        name: in the words of the literature.
        rounds: P -> messages that follow one another.
        share: P -> bytes through one node's link, each way, as a share of S.
    """

    name: str
    rounds: Callable[[int], float]
    share: Callable[[int], float]


def _log(nodes: int) -> float:
    return float(math.ceil(math.log2(nodes)))


def _part(nodes: int) -> float:
    """Returns the share of an array that belongs to the other nodes."""
    return (nodes - 1) / nodes


_MESSAGE = (Algorithm("one message", lambda p: 1, lambda p: 1),)
_RING = Algorithm("ring", lambda p: 2 * (p - 1), lambda p: 2 * _part(p))
_HALF_RING = Algorithm("ring", lambda p: p - 1, _part)

ALGORITHMS: Mapping[str, tuple[Algorithm, ...]] = {
    "latency": _MESSAGE,
    "bandwidth": _MESSAGE,
    "allreduce": (
        _RING,
        Algorithm("reduce-scatter by halving, all-gather", lambda p: 2 * _log(p), _RING.share),
        Algorithm("recursive doubling", _log, _log),
    ),
    "allgather": (_HALF_RING, Algorithm("recursive doubling", _log, _part)),
    "reduce_scatter": (_HALF_RING, Algorithm("recursive halving", _log, _part)),
    "alltoall": (
        Algorithm("pairwise", lambda p: p - 1, _part),
        Algorithm("Bruck", _log, lambda p: _log(p) / 2),
    ),
    "exchange": (Algorithm("all-to-all, all-gather", _RING.rounds, _RING.share),),
}
"""Workload -> its algorithms; the first is taken where cells cannot decide."""

BUS: Mapping[str, Callable[[int], float]] = {
    **dict.fromkeys(("latency", "bandwidth"), lambda p: 1.0),
    **dict.fromkeys(("allreduce", "exchange"), lambda p: 2 * _part(p)),
    **dict.fromkeys(("allgather", "reduce_scatter", "alltoall"), _part),
}
"""Workload -> (P -> bus bandwidth / algorithm bandwidth)."""


def bandwidths(workload: str, nodes: int, size: int, seconds: float) -> tuple[float, float]:
    """Returns algorithm and bus bandwidth in GB/s (1e9 bytes).

    ``algbw = S / t`` and ``busbw = algbw * factor(P)``: 2 (P - 1) / P for an all-reduce,
    (P - 1) / P for all-gather, reduce-scatter and all-to-all, 1 between two nodes.

    >>> bandwidths("allreduce", 4, 2_000_000_000, 1.0)
    (2.0, 3.0)

    Args:
        workload: a key of `BUS`.
        nodes: P.
        size: S in bytes.
        seconds: of one operation.
    """
    rate = size / seconds / 1e9
    return rate, rate * BUS[workload](nodes)
