"""Memory of exchanges, passed from dropped arrays to the next ones.

Fresh memory from the system costs a fault for each page, about as much as two copies. Where the
session has set malloc to keep freed memory, on CPUs, malloc does this, for steps too. Elsewhere the
memory of an array goes to the next one of its size.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import weakref
from collections import defaultdict
from typing import Any

import numpy as np

from .._jax.ffi import aligned
from .._launch.memory import keeps_freed_memory

_CALLS = 1024
"""Idle memory that this many arrays in a row did not need goes back to the system, at the latest
after twice as many."""


class Recycled:
    """Makes arrays; reuses the memory of those that nothing refers to."""

    def __init__(self):
        self._idle, self._older = _blocks(), _blocks()
        self._calls = 0

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
        """An uninitialized array, at an address that JAX takes as it is; any thread may call this.

        Args:
            shape: its shape.
            dtype: its dtype.
        """
        dtype = np.dtype(dtype)
        size = shape if isinstance(shape, int) else math.prod(shape)
        if size == 0:
            return np.empty(shape, dtype)
        self._calls += 1
        if self._calls % _CALLS == 0:
            self._older, self._idle = self._idle, _blocks()
        block = self._block(size * dtype.itemsize)
        # All views of the array refer to the loan, so it ends with the last of them.
        loan: Any = (ctypes.c_uint8 * block.size).from_buffer(block.data)
        end = weakref.finalize(loan, self._take_back, block)
        end.atexit = False
        return np.ndarray(shape, dtype, loan)

    def release(self) -> None:
        """Gives idle memory back to the system."""
        self._idle, self._older = _blocks(), _blocks()

    def _block(self, size: int) -> np.ndarray:
        for blocks in (self._idle, self._older):
            with contextlib.suppress(IndexError):
                return blocks[size].pop()
        return aligned.empty(size, np.uint8)

    def _take_back(self, block: np.ndarray) -> None:
        self._idle[block.size].append(block)


def _blocks() -> defaultdict[int, list[np.ndarray]]:
    """Idle blocks by size."""
    return defaultdict(list)


_recycled = Recycled()


def empty(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialized array, at an address that JAX takes as it is; any thread may call this.

    Args:
        shape: its shape.
        dtype: its dtype.
    """
    return (aligned if keeps_freed_memory() else _recycled).empty(shape, dtype)


def release() -> None:
    """Gives idle memory back to the system, when a session ends."""
    _recycled.release()
