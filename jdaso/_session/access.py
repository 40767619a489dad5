"""Checks who uses a session: one thread of one process, until the session is closed."""

from __future__ import annotations

import threading


class Access:
    """The thread that made a session, and whether the session is still usable.

    Attributes:
        closed: whether the session was closed, or left to another process.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.closed = self._disowned = False

    def close(self) -> None:
        """Refuses all calls from here on."""
        self.closed = True

    def disown(self) -> None:
        """Refuses all calls: the process was forked from the one that the session belongs to."""
        self.closed = self._disowned = True

    def check(self, prefix: str) -> None:
        """Raises an error with this prefix if the session was closed, or in another thread."""
        if self._disowned:
            raise RuntimeError(
                f"{prefix} This process was forked from the one that the session belongs to, and "
                "is not a node. Make the calls in the process that made the session."
            )
        if self.closed:
            raise RuntimeError(
                f"{prefix} This session was closed. Use it inside its with block, "
                "or make another Session."
            )
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                f"{prefix} A session belongs to the thread that made it; "
                f"{threading.current_thread().name} is another one, and calls of two threads could "
                "reach the nodes in different orders. Make the calls from one thread."
            )
