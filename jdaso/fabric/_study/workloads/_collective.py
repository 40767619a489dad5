"""A collective operation as a workload: prepared, checked once against its rule, then measured."""

from __future__ import annotations

import functools

import numpy as np

from ._given import give, given
from ._start import transport_of
from ._timing import measure


def run(name: str, *, gathers: bool = False) -> None:
    """Runs the program of a collective."""
    about = given()
    transport = transport_of(about)
    part = -(-about.numbers // transport.size)
    count = part if gathers else part * transport.size
    send = numbers(transport.rank, count)
    operation = getattr(transport, name)(send)
    check(name, np.asarray(operation()), transport.rank, transport.size, count)
    least = least_parts(name, transport.size) * part * send.itemsize
    result = measure(transport, operation, least, about.settings)
    if transport.rank == 0:
        give(result)


def numbers(rank: int, count: int) -> np.ndarray:
    """Returns the numbers that a node contributes: whole ones, so that sums are exact."""
    return (np.arange(count) % 7 + rank + 1).astype(np.float32)


def least_parts(name: str, nodes: int) -> int:
    """Returns bytes that node 0 must send and receive, in parts of n / P bytes.

    Whatever the algorithm, all that other nodes need of node 0's numbers goes out once, and all
    that node 0 needs of theirs comes in once, sums as sums.
    """
    if nodes == 1:
        return 0
    out, back = {
        "allreduce": (nodes, nodes),
        "allgather": (1, nodes - 1),
        "reduce_scatter": (nodes - 1, 1),
        "alltoall": (nodes - 1, nodes - 1),
    }[name]
    return out + back


def arrived(name: str, rank: int, nodes: int, count: int) -> np.ndarray:
    """Returns the numbers that a collective must bring to a node."""
    part = slice(rank * count // nodes, (rank + 1) * count // nodes)
    part = part if name in ("reduce_scatter", "alltoall") else slice(None)
    each = (numbers(node, count)[part] for node in range(nodes))  # one node's at a time
    if name in ("allgather", "alltoall"):
        return np.concatenate(list(each))
    return functools.reduce(np.add, each)


def check(name: str, found: np.ndarray, rank: int, nodes: int, count: int) -> None:
    """Raises RuntimeError if a collective brought wrong numbers: its time would mean nothing."""
    if not np.array_equal(found, arrived(name, rank, nodes, count)):
        raise RuntimeError(f"node {rank} of {nodes}: {name} brought wrong numbers. Check the MPI.")
