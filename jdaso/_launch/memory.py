"""Memory of this process: freed blocks that the C library keeps, and the process's limit."""

from __future__ import annotations

import ctypes
import os
import resource
import threading

_MALLOC_SETTINGS = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
)
# Parameters of mallopt, in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8

_kept = threading.Event()  # freed memory stays


def keep_freed_memory() -> None:
    """Makes this process keep freed memory for the next step.

    XLA's CPU backend and NumPy take their buffers from malloc and free them in every step. glibc
    returns large ones to the kernel, which provides them again one page of 4 KiB at a time: more
    than half the time of an exchange. With these settings all blocks come from one heap, which
    grows by 16 MiB at a time and returns nothing.

    Call this before other threads begin: running threads already have their own heaps, and new
    threads inherit the heaps of ended ones. Memory freed by one thread is then not reused by
    another, and resident memory keeps growing for hundreds of exchanges, by a third or more.

    Does nothing if the user has configured glibc's malloc, or with another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in _MALLOC_SETTINGS):
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TOP_PAD, 16 * 2**20)
    mallopt(_M_TRIM_THRESHOLD, -1)  # never
    _kept.set()


def keeps_freed_memory() -> bool:
    """Returns whether this process keeps freed memory, by `keep_freed_memory`."""
    return _kept.is_set()


def memory_limit_bytes() -> int:
    """The memory that this process may use: its limit (``ulimit -v``), else the machine's."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            sizes.append(soft)
    return min(sizes)
