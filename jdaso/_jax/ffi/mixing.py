"""A checksum's sum over the words of an array on the host.

Computed by the handler's library once that is loaded: one call without Python's lock. NumPy needs
nine calls for each part, and threads that make thousands of them hold up the one that runs the
steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_PASS = 2**16
"""Words of a NumPy pass, whose operands stay in a core's cache."""

_native: list[Callable[[int, int, int], int]] = []


def mix_by(function: Callable[[int, int, int], int]) -> None:
    """Lets `sum_of_mixed` use a function of the handler's library.

    Args:
        function: takes an address, the count of words there, and the first one's place.
    """
    _native[:] = [function]


def sum_of_mixed(words: np.ndarray, begin: int) -> int:
    """The sum of words, each mixed with its place, modulo ``2**32``.

    Args:
        words: uint32, in one piece; NumPy sums those that are not aligned.
        begin: the place of the first one, modulo ``2**32``.
    """
    if _native and words.flags.aligned:
        return _native[-1](words.ctypes.data, words.size, begin)
    parts = range(0, words.size, _PASS)
    total = sum(_by_numpy(words[at : at + _PASS], (begin + at) & 0xFFFFFFFF) for at in parts)
    return total & 0xFFFFFFFF


def _by_numpy(words: np.ndarray, begin: int) -> int:
    # Mixed, not only multiplied: otherwise +1 here and -1 there would cancel in the sum.
    mixed = np.arange(words.size, dtype=np.uint32)
    mixed += np.uint32(begin)
    mixed *= np.uint32(2654435761)
    mixed ^= words
    mixed *= np.uint32(2246822519)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(3266489917)
    mixed ^= mixed >> np.uint32(13)
    return int(mixed.sum(dtype=np.uint32))
