"""Starts collective operations on host arrays; the caller waits, with its own limit.

Numbers that MPI has no type for (bfloat16 and other narrow floats) travel as bytes. Only operations
that compute need a type: `reduce_all` refuses numbers without one.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .requests import byte

PIECE_BYTES = 1 << 24
"""Bytes moved at a time when an array is laid out along another axis."""

_MOST_COUNT = 2**31 - 1
"""The largest count of an MPI without large counts, such as Open MPI 5."""

_underway: dict[int, Any] = {}
"""Messages that were never waited for, with their data: MPI may still read and write there."""


def computed_as(dtype: np.dtype) -> np.dtype:
    """Returns the type in which MPI computes: the numbers' own, or float32 for narrow ones."""
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    return dtype if dtype.kind in "iufc" and dtype != np.float16 else np.dtype(np.float32)


def operation(name: str) -> Any:
    """Returns MPI's operation by its name: sum, prod, min or max."""
    from mpi4py import MPI

    return getattr(MPI, name.upper())


def reduce_all(comm: Any, array: np.ndarray, found: np.ndarray, name: str) -> Any:
    """Starts an all-reduce into `found`, an array like the given one; returns the request."""
    return comm.Iallreduce(array, found, operation(name))


def gather_all(comm: Any, array: np.ndarray, found: np.ndarray, counts: Sequence[int]) -> Any:
    """Starts an all-gather of blocks of rows; returns the request.

    Args:
        comm: the communicator.
        array: this rank's rows, contiguous.
        found: takes the rows of all ranks.
        counts: rows of each rank.
    """
    width = array.dtype.itemsize * math.prod(array.shape[1:])
    sizes = [width * count for count in counts]
    with _counted(array.nbytes, *sizes, *_begins(sizes)) as (unit, kind):
        into = [_bytes(found), [size // unit for size in sizes], kind]
        return comm.Iallgatherv([_bytes(array), kind], into)


def trade_all(
    comm: Any, sent: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]
) -> tuple[Any, Any, list[np.ndarray]]:
    """Starts an all-to-all of one array for each other rank.

    Args:
        comm: the communicator.
        sent: an array for each rank, all of one dtype; that for this one stays.
        shapes: those of the arrays that each rank sends to this one.

    Returns:
        The request, buffers to keep until it is done, and the arrays that will be received, with
        this rank's own among them.
    """
    dtype, own = sent[0].dtype, comm.Get_rank()
    packed = _packed([one for rank, one in enumerate(sent) if rank != own], dtype)
    sizes = [0 if rank == own else one.nbytes for rank, one in enumerate(sent)]
    widths = [dtype.itemsize * math.prod(shape) for shape in shapes]
    widths[own] = 0
    room = np.empty(sum(widths), np.uint8)
    request = _trade(comm, packed, sizes, _begins(sizes), room, widths, _begins(widths))
    ends = np.cumsum(widths)
    found = [
        room[end - width : end].view(dtype).reshape(shape) if rank != own else sent[own]
        for rank, (end, width, shape) in enumerate(zip(ends, widths, shapes, strict=True))
    ]
    return request, packed, found


def _packed(arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """The bytes of arrays of one dtype, one after another."""
    out, end = np.empty(sum(one.nbytes for one in arrays), np.uint8), 0
    for one in arrays:
        begin, end = end, end + one.nbytes
        out[begin:end].view(dtype).reshape(one.shape)[...] = one
    return out


class Ranges(NamedTuple):
    """A part of an array for each rank: ranges of one axis; the other axes are whole."""

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
    """Returns the rows to move at a time, the same on all ranks, so that buffers stay small.

    Rows are indices along the axis of the received parts, counted from the start of each part.
    If both axes are the same, all rows move at once.
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

    This rank's own part is copied at once. Others are packed only where they are not contiguous.

    Args:
        comm: the communicator.
        array: this rank's array.
        sent: its part for each rank.
        found: the array to fill.
        received: the place there of each rank's part.
        rows: those that move; see `rounds`.

    Returns:
        The request, buffers to keep until it is done, and pairs of a place and its numbers then.
    """
    ranks, own = range(len(sent.ranges)), comm.Get_rank()
    places = [found[received.of(k)] for k in ranks]
    if sent.axis == received.axis:
        parts = [array[sent.of(k)] for k in ranks]
    else:
        index = (*(slice(None),) * received.axis, rows)
        places = [place[index] for place in places]
        parts = [array[index][sent.of(k)] for k in ranks]
    places[own][...] = parts[own]
    parts[own], places[own] = parts[own][:0], places[own][:0]
    sizes, widths = ([one.nbytes for one in each] for each in (parts, places))
    out, room, pairs = _window(array, parts), _window(found, places), []
    if out is None:
        packed = _packed(parts, array.dtype)
        out = packed, _begins(sizes)
    if room is None:
        buffer = np.empty(sum(widths), np.uint8)
        room = buffer, _begins(widths)
        for place, begin, width in zip(places, room[1], widths, strict=True):
            numbers = buffer[begin : begin + width].view(found.dtype).reshape(place.shape)
            pairs.append((place, numbers))
    request = _trade(comm, out[0], sizes, out[1], room[0], widths, room[1])
    return request, (out, room), pairs


def _trade(
    comm: Any,
    out: np.ndarray,
    sizes: Sequence[int],
    places: Sequence[int],
    room: np.ndarray,
    widths: Sequence[int],
    begins: Sequence[int],
) -> Any:
    """Starts an all-to-all of bytes; returns the request."""
    with _counted(*sizes, *places) as (unit, kind), _counted(*widths, *begins) as (one, other):
        sent = [[x // unit for x in sizes], [x // unit for x in places], kind]
        taken = [[x // one for x in widths], [x // one for x in begins], other]
        return comm.Ialltoallv([out, *sent], [room, *taken])


@contextlib.contextmanager
def _counted(*sizes: int) -> Iterator[tuple[int, Any]]:
    """The bytes of an element, and MPI's type for them, in which the sizes are small numbers.

    An element is a byte if that suffices. MPI keeps the type until its messages have arrived.

    Raises:
        OverflowError: no larger element divides all sizes.
    """
    if max(sizes, default=0) <= _MOST_COUNT:
        yield 1, byte()
        return
    unit = math.gcd(*sizes)
    if max(sizes) // unit > _MOST_COUNT:
        raise OverflowError(f"MPI cannot count {max(sizes)} bytes in elements of {unit} bytes")
    kind = byte().Create_contiguous(unit).Commit()
    try:
        yield unit, kind
    finally:
        kind.Free()


def _begins(sizes: Sequence[int]) -> list[int]:
    """The places at which parts of these sizes begin, one after another."""
    return [end - size for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]


def _window(array: np.ndarray, parts: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]] | None:
    """An array's bytes and the places of its parts; None unless all of them are contiguous."""
    if not all(one.flags.c_contiguous for one in (array, *parts)):
        return None
    first = array.ctypes.data
    return _bytes(array), [one.ctypes.data - first if one.size else 0 for one in parts]


def pass_on(
    comm: Any, array: np.ndarray, found: np.ndarray, to: int, source: int, tag: int
) -> tuple[Any, Any]:
    """Starts to send an array to one rank and to receive one from another into `found`.

    Both requests are kept with their data until `passed_on`, even if the caller never waits.
    """
    with _counted(found.nbytes) as (_, kind):
        receive = comm.Irecv([_bytes(found), kind], source, tag)
    with _counted(array.nbytes) as (_, kind):
        send = comm.Isend([_bytes(array), kind], to, tag)
    _underway[id(found)] = receive, send, array, found
    return receive, send


def passed_on(found: np.ndarray) -> None:
    """Releases an array that `pass_on` has received."""
    del _underway[id(found)]


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
