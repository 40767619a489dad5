"""Types of elements: their kinds, their limits, and the common type of several."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._array import Array

KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
"""The standard's types, by their kinds."""
KINDS["integral"] = KINDS["signed integer"] + KINDS["unsigned integer"]
KINDS["numeric"] = KINDS["integral"] + KINDS["real floating"] + KINDS["complex floating"]


@dataclasses.dataclass(frozen=True)
class FloatLimits:
    """Limits of a floating-point type; for complex numbers, those of their parts.

    Attributes:
        bits: of a number.
        eps: the distance from 1 to the next number.
        max: the largest number.
        min: the smallest number.
        smallest_normal: the smallest positive number of full precision.
        dtype: the type of real numbers.
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class IntegerLimits:
    """Limits of an integer type.

    Attributes:
        bits: of a number.
        max: the largest number.
        min: the smallest number.
        dtype: the type.
    """

    bits: int
    max: int
    min: int
    dtype: np.dtype


def dtype_of(x: Any) -> np.dtype:
    """Returns a type as NumPy's; for an array, its type."""
    return x.dtype if hasattr(x, "dtype") and not isinstance(x, type) else jnp.dtype(x)


def finfo(type: Any, /) -> FloatLimits:  # noqa: A002
    """Returns the limits of a floating-point type or of an array's type. Moves nothing.

    Raises:
        ValueError: the type is integer or boolean.
    """
    about = jnp.finfo(dtype_of(type))
    names = ("eps", "max", "min", "smallest_normal")
    numbers = {name: float(getattr(about, name)) for name in names}
    return FloatLimits(bits=int(about.bits), dtype=np.dtype(about.dtype), **numbers)


def iinfo(type: Any, /) -> IntegerLimits:  # noqa: A002
    """Returns the limits of an integer type or of an array's type. Moves nothing.

    Raises:
        ValueError: the type is floating-point or boolean.
    """
    about = jnp.iinfo(dtype_of(type))
    return IntegerLimits(int(about.bits), int(about.max), int(about.min), np.dtype(about.dtype))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Returns whether a type is of a kind.

    Args:
        dtype: the type.
        kind: another type, one of "bool", "signed integer", "unsigned integer", "integral",
            "real floating", "complex floating", "numeric", or a tuple of these.
    """
    return jnp.isdtype(dtype_of(dtype), kind)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Returns whether elements of a type (or an array) get another type by promotion."""
    first, second = dtype_of(from_), dtype_of(to)
    try:
        return jnp.promote_types(first, second) == second
    except (ValueError, TypeError):
        return False


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """Returns the type that an operation of these arrays, types and numbers has. Moves nothing."""
    return jnp.result_type(*(x.block if isinstance(x, Array) else x for x in arrays_and_dtypes))


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape to which shapes are broadcast together.

    Raises:
        ValueError: they do not fit.
    """
    return np.broadcast_shapes(*map(tuple, shapes))
