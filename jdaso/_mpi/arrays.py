"""Starts collective operations on host arrays; the caller waits, with its own limit.

Numbers that MPI has no type for (bfloat16 and other narrow floats) travel as bytes. Only operations
that compute need a type: `reduce_all` refuses such numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .requests import byte

PIECE_BYTES = 1 << 24
"""Bytes that move at a time where an array is laid along another axis."""

_underway: dict[int, Any] = {}
"""Messages that were never waited for, with their data: MPI may still read and write there."""


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
    out = np.empty(sum(one.nbytes for one in sent), np.uint8)
    ends = np.cumsum([one.nbytes for one in sent])
    for one, end in zip(sent, ends, strict=True):
        out[end - one.nbytes : end].view(dtype).reshape(one.shape)[...] = one
    sizes = [int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape in shapes]
    room = np.empty(sum(sizes), np.uint8)
    request = comm.Ialltoallv([out, [one.nbytes for one in sent], byte()], [room, sizes, byte()])
    ends = np.cumsum(sizes)
    found = [
        room[end - size : end].view(dtype).reshape(shape)
        for end, size, shape in zip(ends, sizes, shapes, strict=True)
    ]
    return request, out, found


class Ranges(NamedTuple):
    """A part of an array for each rank: ranges of one axis, of which the other axes are whole."""

    axis: int
    ranges: Sequence[slice]

    def of(self, rank: int) -> tuple[slice, ...]:
        """Returns the index of a rank's part."""
        return (*(slice(None),) * self.axis, self.ranges[rank])

    def elements(self, shape: tuple[int, ...], but: int) -> int:
        """Returns the number of elements of all parts but one."""
        row = math.prod(shape[: self.axis]) * math.prod(shape[self.axis + 1 :])
        return row * sum(p.stop - p.start for k, p in enumerate(self.ranges) if k != but)


def rounds(shape: tuple[int, ...], itemsize: int, sent: Ranges, received: Ranges) -> list[slice]:
    """Returns the rows to move at a time, alike on all ranks, so that buffers stay small.

    Rows are indices of the axis along which the parts are received, of which each rank has its own.
    Parts of one and the same axis move at once.
    """
    if sent.axis == received.axis:
        return [slice(0, max(part.stop - part.start for part in received.ranges))]
    axis = received.axis
    row_bytes = itemsize * math.prod(shape[:axis]) * math.prod(shape[axis + 1 :])
    step = max(1, PIECE_BYTES // max(1, row_bytes))
    most = max(part.stop - part.start for part in received.ranges)
    return [slice(begin, begin + step) for begin in range(0, max(most, 1), step)]


def trade_parts(
    comm: Any, array: np.ndarray, sent: Ranges, found: np.ndarray, received: Ranges, rows: slice
) -> tuple[Any, Any, list[tuple[np.ndarray, np.ndarray]]]:
    """Starts to move some rows of parts of an array, which become parts of another.

    Args:
        comm: the communicator.
        array: this rank's.
        sent: its part for each rank.
        found: the array to fill.
        received: the place there of each rank's part.
        rows: those that move; see `rounds`.

    Returns:
        The request, a buffer to keep until it is done, and then pairs of a place and its numbers.
    """
    ranks = range(len(sent.ranges))
    places = [found[received.of(k)] for k in ranks]
    if sent.axis == received.axis:
        parts = [array[sent.of(k)] for k in ranks]
    else:
        index = (*(slice(None),) * received.axis, rows)
        places = [place[index] for place in places]
        parts = [array[index][sent.of(k)] for k in ranks]
    request, kept, pieces = trade_all(comm, parts, [place.shape for place in places])
    return request, kept, list(zip(places, pieces, strict=True))


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
