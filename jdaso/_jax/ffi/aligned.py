"""Host memory that JAX takes as an array without a copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Bytes. JAX copies a NumPy array whose address is not a multiple of this; the address of a large
one from `numpy.zeros` never is."""


def empty(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array like that of `numpy.empty`, at an address that JAX takes without a copy."""
    return _aligned(np.empty, shape, dtype)


def zeros(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array like that of `numpy.zeros`, at an address that JAX takes without a copy.

    Do not write to an array on a CPU device while a program reads it.
    """
    return _aligned(np.zeros, shape, dtype)


def _aligned(make: Any, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    dtype = np.dtype(dtype)
    size = shape if isinstance(shape, int) else math.prod(shape)
    whole = make(size * dtype.itemsize + ALIGNMENT, np.uint8)
    begin = -whole.ctypes.data % ALIGNMENT
    return whole[begin : begin + size * dtype.itemsize].view(dtype).reshape(shape)
