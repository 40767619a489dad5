"""Python functions that compiled steps call by name; `call.cc` is the other end."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from . import pinned
from .copying import copy_all
from .on_device import OnDevice

_DONE, _FAILED = 1, 0
_SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,  # the function's name
    ctypes.c_int64,  # length of the next
    ctypes.c_void_p,  # int64: address and bytes of each operand, then of each result; bytes are
    # negative for an operand that is left in a GPU's memory
    ctypes.c_void_p,  # where the text of an error goes
    ctypes.c_int64,  # and the room there
)


class ArrayType(NamedTuple):
    """The shape and dtype of an operand or a result."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Its size in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


class _Function:
    """A function with the arrays that it takes and returns."""

    def __init__(
        self, call: Callable[..., Any], operands: Sequence[ArrayType], results: Sequence[ArrayType]
    ) -> None:
        self._call, self._operands, self._results = call, tuple(operands), tuple(results)
        self._sizes = [array.nbytes for array in (*operands, *results)]
        self._numbers = ctypes.c_int64 * (2 * len(self._sizes))
        self._memory: list[Any] = [ctypes.c_char * size for size in self._sizes]
        self._lent: list[np.ndarray] = []  # read by the step after the call

    def __call__(self, count: int, address: int) -> None:
        """Calls the function on the arrays whose addresses and sizes are stored at `address`.

        The address of a result in pinned memory is written there; other results are copied.
        """
        numbers = self._numbers.from_address(address) if count == self._numbers._length_ else None
        given = [] if numbers is None else numbers[:]
        if numbers is None or [abs(size) for size in given[1::2]] != self._sizes:
            raise ValueError(f"the step gives {given[1::2]} bytes, expected {self._sizes}")
        arrays = [
            _array(*about)
            for about in zip(
                (*self._operands, *self._results),
                self._memory,
                given[1::2],
                given[::2],
                strict=True,
            )
        ]
        operands = arrays[: len(self._operands)]
        for operand in operands:
            if isinstance(operand, np.ndarray):
                operand.setflags(write=False)
        found = self._call(*operands)
        if len(found) != len(self._results):
            raise ValueError(f"the function returned {len(found)} arrays, not {len(self._results)}")
        places = arrays[len(operands) :]
        results = [_result(k, np.asarray(x), places[k]) for k, x in enumerate(found)]
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        self._lent = []
        for k, (place, result) in enumerate(zip(places, results, strict=True), len(operands)):
            if place.size and pinned.holds(result):
                numbers[2 * k] = result.ctypes.data
                self._lent.append(result)
            else:
                pairs.append((place, result))
        copy_all(pairs)


def _array(about: ArrayType, memory: Any, size: int, address: int) -> Any:
    """An operand or result at an address; a negative size means a GPU's memory."""
    if size < 0:
        return OnDevice(about.shape, about.dtype, address)
    if size == 0:
        return np.zeros(about.shape, about.dtype)
    return np.ndarray(about.shape, about.dtype, memory.from_address(address))


def _result(number: int, value: np.ndarray, place: np.ndarray) -> np.ndarray:
    """A result as the step expects it; dtypes follow JAX's setting ``jax_enable_x64``."""
    if value.dtype != place.dtype:
        value = value.astype(jax.dtypes.canonicalize_dtype(value.dtype), copy=False)
    if (value.shape, value.dtype) != (place.shape, place.dtype):
        raise ValueError(
            f"result {number} of the function is {value.dtype}{list(value.shape)}, the step "
            f"expects {place.dtype}{list(place.shape)}"
        )
    return value


_lock = threading.Lock()
_functions: dict[bytes, _Function | Exception] = {}
_used: Counter[str] = Counter()
_held: dict[int, list[bytes]] = {}


def name_of(call: Callable[..., Any]) -> str:
    """A function's name in its source, even if the function is wrapped or partially applied."""
    while True:
        if isinstance(call, functools.partial):
            call = call.func
        elif hasattr(call, "__wrapped__"):
            call = call.__wrapped__
        else:
            return getattr(call, "__qualname__", type(call).__name__)


def add(
    label: str,
    call: Callable[..., Any],
    operands: Sequence[ArrayType],
    results: Sequence[ArrayType],
    holder: object = None,
) -> str:
    """Stores a function and returns the name by which steps call it.

    The name is the label and a running number, 0 for the first function with that label. A restart
    of the same program that compiles its steps in the same order gives the same names. Another
    order gives other names, and so another program, which is compiled anew.

    Args:
        label: stable between starts.
        call: takes NumPy arrays, or `OnDevice` for those left on a GPU, and must neither keep nor
            change them; returns a sequence.
        operands: the arrays that it takes.
        results: the arrays that it returns.
        holder: the function is kept until `forget` is called with this object; otherwise for ever.
    """
    with _lock:
        name = f"{label} #{_used[label]}"
        _used[label] += 1
        _functions[name.encode()] = _Function(call, operands, results)
        if holder is not None:
            _held.setdefault(id(holder), []).append(name.encode())
    return name


@dataclasses.dataclass(eq=False)
class Callee:
    """A function that a step calls, with the arguments of `add`; named once it is in a program."""

    call: Callable[..., Any]
    label: str
    holder: object
    name: str | None = None

    def name_for(self, operands: Sequence[Any], results: Sequence[Any]) -> str:
        """The function's name, the same in all programs that it is compiled into.

        Operands and results are anything with a shape and a dtype.
        """
        if self.name is None:
            taken, given = (
                [ArrayType(x.shape, np.dtype(x.dtype)) for x in arrays]
                for arrays in (operands, results)
            )
            self.name = add(self.label, self.call, taken, given, self.holder)
        return self.name


def forget(holder: object, error: Exception) -> None:
    """Drops a holder's functions and all that they hold; steps that call them get this error."""
    with _lock:
        for name in _held.pop(id(holder), ()):
            _functions[name] = error


@_SIGNATURE
def entry(name: bytes, count: int, arrays: int, text: int, room: int) -> int:
    """Calls a function for `call.cc`; an exception becomes the text of the step's error."""
    try:
        function = _functions.get(name)
        if function is None:
            raise LookupError(
                f"This process has no function {name.decode()!r}: the step was compiled by another "
                "process and loaded without being traced here. Call the jitted function, and let "
                "JAX's compilation cache load it."
            )
        if isinstance(function, Exception):
            raise function.with_traceback(None)
        function(count, arrays)
        return _DONE
    except BaseException:
        # The end of a long text holds the exception itself.
        told = traceback.format_exc().encode(errors="replace")[1 - room :] + b"\0"
        ctypes.memmove(text, told, len(told))
        return _FAILED
