"""Memory that goes from arrays that are dropped to the next ones of their size.

Fresh memory of the system costs a fault for each page, about as much as two copies.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import defaultdict
from typing import Any

import numpy as np

from . import aligned


class Recycled:
    """Makes arrays; the memory of those that nothing refers to any more is used again."""

    def __init__(self):
        self._idle: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of any numbers, at an address that JAX takes as it is; any thread may call it.

        Args:
            shape: its shape.
            dtype: its dtype.
        """
        dtype = np.dtype(dtype)
        size = shape if isinstance(shape, int) else math.prod(shape)
        if size == 0:
            return np.empty(shape, dtype)
        idle = self._idle[size * dtype.itemsize]
        try:
            block = idle.pop()
        except IndexError:
            block = aligned.zeros(size * dtype.itemsize, np.uint8)
        # All views of the array refer to the loan, so it ends with the last of them.
        loan: Any = (ctypes.c_uint8 * block.size).from_buffer(block.data)
        end = weakref.finalize(loan, idle.append, block)
        end.atexit = False
        return np.ndarray(shape, dtype, loan)
