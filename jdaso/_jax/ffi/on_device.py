"""Operands that a call leaves in a GPU's memory, for the function to copy where it needs them.

So large operands cross the link once, to where they stay; otherwise the handler copies them to its
own memory, and the function copies them again, at the speed of the host.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

Copy = tuple[np.ndarray, "OnDevice"]
"""A target on the host, in one piece, and its source, of one size and dtype."""

_copier: list[Callable[[int, int], int]] = []
_waited = threading.local()
_NO_CALL = -1


class OnDevice:
    """An array in a GPU's memory; `copy_out` can read it until the called function returns.

    Args:
        shape: its shape.
        dtype: its dtype.
        address: of its first number; the numbers lie one after another.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, address: int) -> None:
        self.shape, self.dtype, self.address = shape, dtype, address

    @property
    def size(self) -> int:
        """The count of numbers."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Its size in memory."""
        return self.size * self.dtype.itemsize

    def reals(self) -> OnDevice:
        """Its numbers in one dimension; a complex one is two."""
        dtype = np.real(np.zeros(1, self.dtype)).dtype
        return OnDevice((self.nbytes // dtype.itemsize,), dtype, self.address)

    def __getitem__(self, part: slice) -> OnDevice:
        """A range of an array of one dimension."""
        (count,) = self.shape
        begin, end, step = part.indices(count)
        if step != 1:
            raise IndexError(f"a range of step 1 is needed, got {part}")
        address = self.address + begin * self.dtype.itemsize
        return OnDevice((max(end - begin, 0),), self.dtype, address)


def copy_out(copies: Sequence[Copy]) -> None:
    """Copies to the host and waits until it is done; must run in the thread of the call.

    Raises:
        RuntimeError: CUDA's driver failed, or no call of a step is running in this thread.
        TypeError: a target has another size or dtype than its source, or is not in one piece.
    """
    numbers: list[int] = []
    for target, source in copies:
        alike = (target.size, target.dtype) == (source.size, source.dtype)
        if not (alike and target.flags.c_contiguous):
            raise TypeError(
                f"{source.dtype}[{source.size}] on a GPU cannot be copied to "
                f"{target.dtype}[{target.size}] with strides {target.strides}"
            )
        numbers += (target.ctypes.data, source.address, source.nbytes)
    if not numbers:
        return
    about = (ctypes.c_int64 * len(numbers))(*numbers)
    begin, working = time.perf_counter(), time.thread_time()
    status = _copier[-1](len(copies), ctypes.addressof(about))
    waited = time.perf_counter() - begin - (time.thread_time() - working)
    _waited.seconds = waited_seconds() + max(waited, 0.0)
    if status == _NO_CALL:
        raise RuntimeError(
            "an array on a GPU can be copied only by the function that a step calls, in its thread"
        )
    if status:
        raise RuntimeError(f"copying from a GPU failed: CUDA's driver returned error {status}")


def waited_seconds() -> float:
    """Seconds that this thread has waited for such copies without using a core, in all."""
    return getattr(_waited, "seconds", 0.0)


def copy_by(copier: Callable[[int, int], int]) -> None:
    """Lets `copy_out` use a function of the handler's library.

    Args:
        copier: takes a count and the address of that many triples of int64 (target, source, bytes);
            returns 0, or the driver's error.
    """
    _copier[:] = [copier]
