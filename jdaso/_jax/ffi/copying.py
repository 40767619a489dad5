"""Copies of large arrays on the host, with several threads.

One thread copies some 7 GB/s. A GPU's link moves 45, and training waits meanwhile.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .on_device import OnDevice, copy_out

Pair = tuple[np.ndarray, np.ndarray]
"""A target and its source, of one shape."""

SHARE_BYTES = 2**21
"""The least number of bytes worth a thread, which copies them in some 0.3 ms."""
_PIECE_BYTES = 2**20
_MOST_THREADS = 8


@functools.cache
def threads() -> int:
    """The number of threads that copy: half of the cores, so that as many remain for other work."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(_MOST_THREADS, (cores or 1) // 2))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads(), thread_name_prefix="jdaso-copy")


def copy_all(pairs: Sequence[tuple[np.ndarray, np.ndarray | OnDevice]]) -> None:
    """Copies each source to its target, with conversions between floats like `numpy.copyto`.

    Sources in a GPU's memory are copied first, see `copy_out`.
    """
    copy_out([(target, source) for target, source in pairs if isinstance(source, OnDevice)])
    _copy_on_host([(target, source) for target, source in pairs if isinstance(source, np.ndarray)])


def _copy_on_host(pairs: Sequence[Pair]) -> None:
    count = min(threads(), sum(target.nbytes for target, _ in pairs) // SHARE_BYTES)
    if count < 2:
        _copy(pairs)
        return
    mine, *others = shares(pairs, count)
    running = []
    for share in others:
        try:
            running.append(_pool().submit(_copy, share))
        except RuntimeError:  # the interpreter is shutting down
            _copy(share)
    _copy(mine)
    for future in running:
        future.result()


def shares(pairs: Sequence[Pair], count: int) -> list[list[Pair]]:
    """Divides copies into `count` shares of about equal size; large arrays are cut."""
    total, done = sum(target.nbytes for target, _ in pairs), 0
    found: list[list[Pair]] = [[] for _ in range(count)]
    for piece in _pieces(pairs):
        found[done * count // total].append(piece)
        done += piece[0].nbytes
    return found


def _pieces(pairs: Sequence[Pair]) -> Iterator[Pair]:
    for target, source in pairs:
        if not (target.flags.c_contiguous and source.flags.c_contiguous):
            yield target, source
            continue
        target, source = target.reshape(-1), source.reshape(-1)
        step = max(_PIECE_BYTES // target.itemsize, 1)
        for begin in range(0, target.size, step):
            yield target[begin : begin + step], source[begin : begin + step]


def _copy(pairs: Sequence[Pair]) -> None:
    for target, source in pairs:
        np.copyto(target, source, casting="same_kind")
