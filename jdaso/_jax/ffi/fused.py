"""Loops of the handler's library: numbers on their way to a wire and back, one pass each.

`fused.h` is the other end. Arrays are contiguous; rows of a wire may be followed by other data.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

WIRES = ("float32", "bfloat16", "int8", "int4")
"""The wires that the library has, in the order of its numbers."""

Real = float | np.float32

_ADDRESS, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_library: dict[str, Callable[[int], None]] = {}


class _Shape(ctypes.Structure):
    _fields_ = [(name, _COUNT) for name in ("wire", "nodes", "width", "stride")]


class _Encoding(ctypes.Structure):
    _fields_ = [
        ("shape", _Shape),
        *((name, _ADDRESS) for name in ("numbers", "anchor", "weight", "lost", "residual", "paid")),
        ("node", _COUNT),
        ("sent", _FLOAT),
        ("kept", _FLOAT),
        *((name, _ADDRESS) for name in ("rows", "error", "fed")),
    ]


class _Summing(ctypes.Structure):
    _fields_ = [("shape", _Shape), *((name, _ADDRESS) for name in ("rows", "encoded", "residual"))]


class _Mean(ctypes.Structure):
    _fields_ = [
        ("shape", _Shape),
        ("rows", _ADDRESS),
        ("anchor", _ADDRESS),
        ("factor", _FLOAT),
        ("nodes", _FLOAT),
        ("mean", _ADDRESS),
        ("numbers", _ADDRESS),
        ("subtracts", _COUNT),
    ]


def compute_by(function: Callable[[str], Callable[[int], None]]) -> None:
    """Takes the loops from a library.

    Args:
        function: returns a function by its name; it takes the address of its arguments.
    """
    _library.update({name: function(f"jdaso_{name}") for name in ("encode", "total", "mean")})


def encode(
    wire: str,
    numbers: np.ndarray,
    rows: np.ndarray,
    *,
    anchor: np.ndarray | None = None,
    weight: np.float32 | None = None,
    lost: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    paid: np.ndarray | None = None,
    node: int = 0,
    sent: Real = 1.0,
    kept: Real = 0.0,
    error: np.ndarray | None = None,
    fed: np.ndarray | None = None,
) -> None:
    """Encodes ``weight (numbers - anchor) + fed`` into `rows`, which may be longer.

    Args:
        wire: the wire's name.
        numbers: float32 ``[nodes, width]``, as all but `residual`.
        rows: of the wire's dtype.
        anchor: None for zeros.
        weight: None for 1.
        lost: for ``fed = sent (lost + residual in row node) + kept paid``; None for no `fed`.
        residual: float32 ``[width]``; None for zeros.
        paid: None for zeros.
        node: the row of `residual`.
        sent: see `lost`.
        kept: see `lost`.
        error: receives what the wire loses.
        fed: receives what is added; zeros without `lost`.
    """
    weights = None if weight is None else np.array(weight, np.float32)
    _call(
        "encode",
        _Encoding(
            _shape(wire, numbers.shape, rows),
            *map(_address, (numbers, anchor, weights, lost, residual, paid)),
            int(node),
            float(sent),
            float(kept),
            rows.ctypes.data,
            *map(_address, (error, fed)),
        ),
    )


def total(
    wire: str, width: int, rows: np.ndarray, encoded: np.ndarray, residual: np.ndarray | None
) -> None:
    """Encodes the sum of rows, first row first.

    Args:
        wire: the wire's name.
        width: the count of numbers in a row.
        rows: of the wire's dtype, one for each node; they may be longer.
        encoded: receives the encoded sum.
        residual: float32 ``[width]``, receives what the wire loses of the sum.
    """
    given = rows.ctypes.data, encoded.ctypes.data, _address(residual)
    _call("total", _Summing(_shape(wire, (len(rows), width), rows), *given))


def mean(
    wire: str,
    rows: np.ndarray,
    shape: tuple[int, ...],
    *,
    anchor: np.ndarray | None,
    factor: Real,
    nodes: Real,
    mean: np.ndarray | None,
    numbers: np.ndarray | None = None,
    subtracts: bool = False,
) -> None:
    """The mean ``(factor rows + nodes anchor) (1 / nodes)``.

    Args:
        wire: the wire's name.
        rows: encoded sums, which may be longer.
        shape: ``[nodes, width]`` of their numbers.
        anchor: float32 like the numbers; None for zeros.
        factor: see above.
        nodes: see above.
        mean: receives the mean.
        numbers: receives the mean too, or ``mean - numbers``.
        subtracts: whether `numbers` receives the difference.
    """
    _call(
        "mean",
        _Mean(
            _shape(wire, shape, rows),
            rows.ctypes.data,
            _address(anchor),
            float(factor),
            float(nodes),
            *map(_address, (mean, numbers)),
            int(subtracts),
        ),
    )


def _shape(wire: str, shape: tuple[int, ...], rows: np.ndarray) -> _Shape:
    if rows.strides[-1] != rows.itemsize:
        raise ValueError("the numbers of a row do not lie side by side")
    return _Shape(WIRES.index(wire), *shape, rows.strides[0])


def _address(array: np.ndarray | None) -> int | None:
    if array is None:
        return None
    if array.dtype != np.float32:
        raise TypeError(f"numbers are float32, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError("an array does not lie in one piece")
    return array.ctypes.data


def _call(name: str, about: Any) -> None:
    _library[name](ctypes.addressof(about))
