"""Files that are read at any position: any number of them, of which some are open at a time."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

MOST_IDLE = 256
"""Files of this process that stay open while no thread reads them: a process may often open only
1024 files."""

_lock = threading.RLock()  # a garbage collection may close a file while this thread holds the lock
_idle: OrderedDict[Descriptor, None] = OrderedDict()
"""Open files that no thread reads; the one that was read the longest time ago is first."""

# A forked process has no other thread, which might hold the lock for ever.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class Descriptor:
    """The descriptor of a file; closed while others are read instead, if there are many.

    Args:
        path: the file.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path):
        self._path = path
        self._number: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._file = _identity(self._number)
        self._readers = 0
        with _lock:
            self._rest()

    def take(self) -> int:
        """Returns the descriptor for one read; `give_back` ends it.

        Raises:
            OSError: the file cannot be opened again, or another file has its name now.
        """
        with _lock:
            if self._number is None:
                self._number = self._open_again()
            _idle.pop(self, None)
            self._readers += 1
            return self._number

    def give_back(self) -> None:
        """Ends a read."""
        with _lock:
            self._readers -= 1
            if not self._readers:
                self._rest()

    def close(self) -> None:
        """Closes the file, which no thread reads."""
        with _lock:
            _idle.pop(self, None)
            number, self._number = self._number, None
            if number is not None:
                os.close(number)

    def _rest(self) -> None:
        _idle[self] = None
        while len(_idle) > MOST_IDLE:
            _idle.popitem(last=False)[0].close()

    def _open_again(self) -> int:
        number = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        if _identity(number) != self._file:
            os.close(number)
            raise OSError("another file has taken its name since it was opened")
        return number


def _identity(number: int) -> tuple[int, ...]:
    """The device, inode, size and time of an open file; a new file may get the inode of an old."""
    about = os.fstat(number)
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
