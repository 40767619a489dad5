"""Operators and methods by name: modules above `_array` put their functions here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

METHODS: dict[str, Callable[..., Any]] = {}
"""Operators and methods by name."""


def method(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function the method with this name."""

    def put(function: Callable[..., Any]) -> Callable[..., Any]:
        METHODS[name] = function
        return function

    return put


def made(name: str, doc: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Names a function that was made from another one, and makes it a method."""
    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return method(name)(call)


def is_operand(x: object) -> bool:
    """Returns whether operators accept `x`."""
    kinds = Operators | jax.Array | np.ndarray | np.generic | bool | int | float | complex
    return isinstance(x, kinds)


def _operator(name: str, *, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any, /) -> Any:
        if not is_operand(other):
            return NotImplemented
        return METHODS[name](other, self) if swapped else METHODS[name](self, other)

    return operator


def _both(name: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    return _operator(name), _operator(name, swapped=True)


class Operators:
    """Python's operators, as the functions of their names. ``x += y`` makes a new array."""

    __slots__ = ()

    def __neg__(self) -> Any:
        return METHODS["negative"](self)

    def __pos__(self) -> Any:
        return METHODS["positive"](self)

    def __abs__(self) -> Any:
        return METHODS["abs"](self)

    def __invert__(self) -> Any:
        return METHODS["bitwise_invert"](self)

    def __divmod__(self, other: Any, /) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any, /) -> Any:
        return other // self, other % self

    __add__, __radd__ = _both("add")
    __sub__, __rsub__ = _both("subtract")
    __mul__, __rmul__ = _both("multiply")
    __truediv__, __rtruediv__ = _both("divide")
    __floordiv__, __rfloordiv__ = _both("floor_divide")
    __mod__, __rmod__ = _both("remainder")
    __pow__, __rpow__ = _both("pow")
    __matmul__, __rmatmul__ = _both("matmul")
    __and__, __rand__ = _both("bitwise_and")
    __or__, __ror__ = _both("bitwise_or")
    __xor__, __rxor__ = _both("bitwise_xor")
    __lshift__, __rlshift__ = _both("bitwise_left_shift")
    __rshift__, __rrshift__ = _both("bitwise_right_shift")
    __lt__ = _operator("less")
    __le__ = _operator("less_equal")
    __gt__ = _operator("greater")
    __ge__ = _operator("greater_equal")

    __eq__ = _operator("equal")  # pyright: ignore[reportAssignmentType]
    __ne__ = _operator("not_equal")  # pyright: ignore[reportAssignmentType]
    __hash__ = None  # pyright: ignore[reportAssignmentType]
