"""The turn of a rank's threads to make collective calls, and the number of these calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial

from .._mpi.requests import poll


class Turn:
    """The turn to make collective calls, which one thread of a rank has at a time.

    Attributes:
        calls: those made so far; the same on all ranks that make the same calls.
    """

    def __init__(self):
        self.calls = 0
        self._lock = threading.Lock()
        self._caller: int | None = None  # the thread that holds the lock

    def count(self) -> int:
        """Counts one more call."""
        self.calls += 1
        return self.calls

    @property
    def is_mine(self) -> bool:
        """True if this thread has the turn."""
        return self._caller == threading.get_ident()

    @contextlib.contextmanager
    def taken(self, check: Callable[[], None]) -> Iterator[None]:
        """Context of a thread that has the turn; `check` is called while it waits."""
        poll(partial(self._lock.acquire, timeout=0.05), check)
        self._caller = threading.get_ident()
        try:
            yield
        finally:
            self._caller = None
            self._lock.release()
