"""Memory of this process: freed blocks that the C library keeps, and the limit of its container."""

from __future__ import annotations

import ctypes
import os
import resource

_MALLOC_SETTINGS = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
)
# Of mallopt, in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def keep_freed_memory() -> None:
    """Lets this process keep memory that was freed, for the next step to use.

    XLA's CPU backend and NumPy take their buffers from malloc and free them in every step. glibc
    gives large ones back to the kernel, which provides them anew one page of 4 KiB at a time: more
    than half of the time of an exchange. Here all blocks come from one heap, which grows by 16 MiB
    at a time and gives nothing back.

    To be called before other threads begin: those that run have heaps of their own already, and
    new ones inherit those of ended ones. What one thread has freed then does not serve another,
    and resident memory goes on growing for hundreds of exchanges, by a third or more.

    Does nothing where the user has set glibc's malloc, or where the C library is another one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in _MALLOC_SETTINGS):
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TOP_PAD, 16 * 2**20)
    mallopt(_M_TRIM_THRESHOLD, -1)  # never


def memory_limit_bytes() -> int:
    """How much memory this process may use: its limit (``ulimit -v``), else the machine's."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            sizes.append(soft)
    return min(sizes)
