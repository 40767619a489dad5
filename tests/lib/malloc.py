"""Memory that glibc's malloc has given out."""

import ctypes
import re


class MallocInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def used_megabytes():
    """Megabytes in use: of all heaps, and of mapped blocks."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallocInfo
    info = mallinfo2()
    return (info.uordblks + info.hblkhd) / 2**20


def heaps():
    """Megabytes of each heap, in use or not."""
    libc = ctypes.CDLL(None)
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    parts = re.findall("<heap .*?</heap>", text.value.decode(), re.S)
    return [int(re.search('type="current" size="([0-9]+)"', part)[1]) / 2**20 for part in parts]
