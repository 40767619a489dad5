"""Starts collective operations on host arrays; the caller waits, with its own limit.

Numbers that MPI has no type for (bfloat16 and other narrow floats) travel as bytes. Only operations
that compute need a type: `reduce_all` refuses such numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .requests import byte

_underway: dict[int, Any] = {}
"""Messages that nobody has waited for yet, with their data: MPI may still read and write there."""


def computed_as(dtype: np.dtype) -> np.dtype:
    """Returns the type in which MPI computes: the numbers' own, or float32 for narrow ones."""
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    return dtype if dtype.kind in "iufc" and dtype != np.float16 else np.dtype(np.float32)


def operation(name: str) -> Any:
    """Returns MPI's operation of a name: sum, prod, min or max."""
    from mpi4py import MPI

    return getattr(MPI, name.upper())


def reduce_all(comm: Any, array: np.ndarray, name: str) -> tuple[Any, np.ndarray]:
    """Starts an all-reduce; returns the request and the array that will hold the result."""
    found = np.empty_like(array)
    return comm.Iallreduce(array, found, operation(name)), found


def gather_all(comm: Any, array: np.ndarray, counts: Sequence[int]) -> tuple[Any, np.ndarray]:
    """Starts an all-gather of blocks of rows.

    Args:
        comm: the communicator.
        array: this rank's rows, contiguous.
        counts: rows of each rank.

    Returns:
        The request, and the array that will hold all rows.
    """
    found = np.empty((sum(counts), *array.shape[1:]), array.dtype)
    width = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    sizes = [width * count for count in counts]
    request = comm.Iallgatherv([_bytes(array), byte()], [_bytes(found), sizes, byte()])
    return request, found


def trade_all(
    comm: Any, sent: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]
) -> tuple[Any, np.ndarray, list[np.ndarray]]:
    """Starts an all-to-all of one array for each rank.

    Args:
        comm: the communicator.
        sent: an array for each rank, all of one dtype.
        shapes: of the arrays that each rank sends to this one.

    Returns:
        The request, a buffer to keep until it is done, and the arrays that will be received.
    """
    dtype = sent[0].dtype
    out = np.concatenate([_bytes(one) for one in sent])
    sizes = [int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape in shapes]
    room = np.empty(sum(sizes), np.uint8)
    request = comm.Ialltoallv([out, [one.nbytes for one in sent], byte()], [room, sizes, byte()])
    ends = np.cumsum(sizes)
    found = [
        room[end - size : end].view(dtype).reshape(shape)
        for end, size, shape in zip(ends, sizes, shapes, strict=True)
    ]
    return request, out, found


def pass_on(
    comm: Any, array: np.ndarray, to: int, source: int, shape: tuple[int, ...], tag: int
) -> tuple[tuple[Any, Any], np.ndarray]:
    """Starts to send an array to one rank and to receive one from another.

    Both stay with their data until `passed_on`, also if the caller fails before it waits.
    """
    found = np.empty(shape, array.dtype)
    receive = comm.Irecv([_bytes(found), byte()], source, tag)
    send = comm.Isend([_bytes(array), byte()], to, tag)
    _underway[id(found)] = receive, send, array, found
    return (receive, send), found


def passed_on(found: np.ndarray) -> None:
    """Lets go of an array that `pass_on` has received."""
    del _underway[id(found)]


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
