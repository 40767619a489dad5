"""Memory of the host that JAX takes as an array without a copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Bytes. JAX copies an array of NumPy's whose address is no multiple of it, and large ones from
`numpy.zeros` never have such an address."""


def empty(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """Any numbers, as `numpy.empty` gives them, at an address that JAX takes as it is."""
    return _aligned(np.empty, shape, dtype)


def zeros(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros, as `numpy.zeros` gives them, at an address that JAX takes as it is.

    Whoever puts them on a CPU device must not write to them while a program reads them.
    """
    return _aligned(np.zeros, shape, dtype)


def _aligned(make: Any, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    dtype = np.dtype(dtype)
    size = shape if isinstance(shape, int) else math.prod(shape)
    whole = make(size * dtype.itemsize + ALIGNMENT, np.uint8)
    begin = -whole.ctypes.data % ALIGNMENT
    return whole[begin : begin + size * dtype.itemsize].view(dtype).reshape(shape)
