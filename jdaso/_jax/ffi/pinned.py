"""Pinned host memory, from which a GPU copies at the speed of its link.

A function's result that lies in this memory is not copied again on the host.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

_lock = threading.Lock()
_ranges: dict[int, int] = {}  # begin -> end of the memory in use


def zeros(
    size: int, dtype: Any, take: Callable[[int], int | None], give: Callable[[int], None]
) -> np.ndarray:
    """Zeros in pinned memory, freed once nothing refers to it; otherwise in ordinary memory.

    Args:
        size: their number.
        dtype: their dtype.
        take: allocates bytes and returns their address, or None if there is no such memory.
        give: frees the memory at an address.
    """
    nbytes = size * np.dtype(dtype).itemsize
    address = take(nbytes) if nbytes else None
    if address is None:
        return np.zeros(size, dtype)
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    with _lock:
        _ranges[address] = address + nbytes

    def back() -> None:
        with _lock:
            del _ranges[address]
        give(address)

    end = weakref.finalize(memory, back)
    end.atexit = False
    found = np.ndarray(size, dtype, memory)
    found.fill(0)
    return found


def holds(array: np.ndarray) -> bool:
    """Returns whether an array lies in pinned memory, in one piece."""
    if not _ranges or not array.flags.c_contiguous:
        return False
    begin = array.ctypes.data
    with _lock:
        return any(a <= begin and begin + array.nbytes <= b for a, b in _ranges.items())
