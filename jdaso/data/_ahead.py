"""A thread that has the next batches on the devices before they are asked for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

_LOOK_SECONDS = 0.1
_END_SECONDS = 10.0


class _Failed:
    def __init__(self, error: BaseException):
        self.error = error


class Readers:
    """Threads that read, and keep nobody from ending.

    Python waits at its exit for threads of a pool, as grain's. One that sits in a file system that
    hangs would keep a process that failed from ending, and with it all nodes. There are no more
    threads later than at first, so that a limit of memory (each has a stack) is met early or never.

    Args:
        read: what they call, with a number.
        count: how many they are.
    """

    def __init__(self, read: Callable[[int], Any], count: int):
        self._read, self._count = read, count
        self._asked: queue.SimpleQueue[tuple[int, queue.SimpleQueue[Any]] | None]
        self._asked = queue.SimpleQueue()
        self._closed = threading.Event()
        for _ in range(count):
            threading.Thread(target=self._run, name="jdaso-read", daemon=True).start()

    def __call__(self, number: int) -> Any:
        """What `read` gives, or raises.

        Raises:
            InterruptedError: they were closed meanwhile.
        """
        found: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked.put((number, found))
        while not self._closed.is_set():
            try:
                batch = found.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(batch, _Failed):
                raise batch.error
            return batch
        raise InterruptedError("Nobody wants this batch any more.")

    def close(self) -> None:
        """Ends them, each when what it reads has come."""
        self._closed.set()
        for _ in range(self._count):
            self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None and not self._closed.is_set():
            number, found = asked
            try:
                found.put(self._read(number))
            except BaseException as error:
                found.put(_Failed(error))


class Ahead:
    """Takes batches from an iterator, puts them on the devices, and keeps them.

    Args:
        batches: makes an iterator with ``close``, which reads by what it is given.
        readers: that; closed with this.
        put: a batch on the devices.
        prefetch: how many batches are there at most, besides those taken; 2 or more.
    """

    def __init__(
        self,
        batches: Callable[[Readers], Any],
        readers: Readers,
        put: Callable[[Any], Any],
        prefetch: int,
    ):
        self._ready: queue.Queue[Any] = queue.Queue(prefetch - 1)  # and one in the thread's hands
        self._stop = threading.Event()
        self._readers, self._put = readers, put
        self._batches = batches(readers)
        self._thread = threading.Thread(target=self._run, name="jdaso-data", daemon=True)
        self._thread.start()

    def take(self, limit_seconds: float) -> Any:
        """The next batch.

        Raises:
            TimeoutError: it did not come.
            Exception: what reading it raised.
        """
        try:
            found = self._ready.get(timeout=limit_seconds)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(found, _Failed):
            raise found.error
        return found

    def close(self) -> None:
        """Ends the thread; what it has is given up."""
        self._stop.set()
        self._readers.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_END_SECONDS)
        self._batches.close()

    def _run(self) -> None:
        try:
            for batch in self._batches:
                if self._stop.is_set() or not self._hand_over(self._put(batch)):
                    return
        except BaseException as error:
            self._hand_over(_Failed(error))

    def _hand_over(self, found: Any) -> bool:
        """Whether it was wanted."""
        while not self._stop.is_set():
            try:
                self._ready.put(found, timeout=_LOOK_SECONDS)
                return True
            except queue.Full:
                continue
        return False
