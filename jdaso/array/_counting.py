"""Counts of operations between nodes, and of the bytes that they move."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator


@dataclasses.dataclass(eq=False)
class Count:
    """Operations between nodes, and the bytes that this node sent in them.

    Attributes:
        calls: the number of operations.
        bytes_sent: by this node, the fewest that the operation needs: 2 n (P - 1) / P for an
            all-reduce of n bytes on P nodes.
    """

    calls: int = 0
    bytes_sent: int = 0


class _CountsOfThread(threading.local):
    """The open counts of a thread."""

    def __init__(self) -> None:
        self.counts: list[Count] = []


_thread = _CountsOfThread()


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Counts this thread's operations between nodes; those of compiled programs when traced.

    Example:
        >>> import jdaso.array as ja
        >>> with ja.counted() as count:
        ...     total = ja.sum(ja.ones((4, 2), split=0))
        >>> count.calls  # a single node sends nothing
        0
    """
    count = Count()
    _thread.counts.append(count)
    try:
        yield count
    finally:
        _thread.counts.remove(count)


def note(calls: int, sent: float) -> None:
    """Adds to all open counts."""
    for count in _thread.counts:
        count.calls += calls
        count.bytes_sent += round(sent)
