"""Numbers at equal ratios: made from numbers at equal distances, in 64 bits on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._array import Array
from ._create import spaced


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    *,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    split: int | None = None,
) -> Array:
    """Numbers ``base ** y``, y from start to stop at equal distances, like `numpy.logspace`.

    Nothing moves.
    """
    if np.ndim(base):
        raise ValueError(f"logspace takes one base, got {base!r}.")

    def power(numbers: np.ndarray) -> np.ndarray:
        return np.power(base, numbers)

    return spaced(start, stop, num, dtype, endpoint=endpoint, split=split, mapped=power)


def geomspace(
    start: Any,
    stop: Any,
    num: int = 50,
    *,
    endpoint: bool = True,
    dtype: Any = None,
    split: int | None = None,
) -> Array:
    """Numbers from start to stop at equal ratios, like `numpy.geomspace`; complex on a spiral.

    Nothing moves.

    Raises:
        ValueError: a bound is 0, or the bounds are real and of different signs, or no numbers.
    """
    if np.ndim(start) or np.ndim(stop):
        raise ValueError(f"geomspace takes two numbers, got {start!r} and {stop!r}.")
    kind = np.result_type(start, stop, float)
    first, last = (np.asarray(one, kind)[()] for one in (start, stop))
    if first == 0 or last == 0 or (kind.kind != "c" and np.sign(first) != np.sign(last)):
        raise ValueError(
            f"geomspace takes two bounds of one sign, none of them 0, got {start} and {stop}."
        )
    ends = np.log10(np.abs([first, last]))
    turn = np.angle(last / first) if kind.kind == "c" else 0.0

    def between(share: np.ndarray) -> np.ndarray:
        found = 10 ** (ends[0] + (ends[1] - ends[0]) * share)
        found = found * (first / np.abs(first))
        found = found * np.exp(1j * turn * share) if kind.kind == "c" else found
        return np.where(share == 0, first, np.where(share == 1, last, found))

    return spaced(0.0, 1.0, num, dtype, endpoint=endpoint, split=split, mapped=between)
