"""A thread that puts the next batches on the devices ahead of time."""

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
    """Threads that read, but never keep the process from ending.

    At exit Python waits for the threads of a pool, such as grain's. A pool thread that hangs in a
    file system would keep a failed process from ending, and with it all nodes. All threads start at
    once, so that a limit on memory (each has a stack) is hit at the start or never.

    Args:
        read: called with a number, in one of the threads.
        count: number of threads.
    """

    def __init__(self, read: Callable[[int], Any], count: int):
        self._read, self._count = read, count
        self._asked: queue.SimpleQueue[tuple[int, queue.SimpleQueue[Any]] | None]
        self._asked = queue.SimpleQueue()
        self._closed = threading.Event()
        for _ in range(count):
            threading.Thread(target=self._run, name="jdaso-read", daemon=True).start()

    def __call__(self, number: int) -> Any:
        """Calls `read` in a thread; returns its result or raises its error.

        Raises:
            InterruptedError: the threads were closed in the meantime.
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
        """Ends the threads, each after its current read."""
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
    """Takes batches from an iterator, puts them on the devices, and keeps them ready.

    Args:
        batches: makes an iterator with ``close``, which reads by calling its argument.
        readers: that argument; closed together with this.
        put: puts a batch on the devices.
        prefetch: the most batches kept besides those taken; at least 2.
    """

    def __init__(
        self,
        batches: Callable[[Readers], Any],
        readers: Readers,
        put: Callable[[Any], Any],
        prefetch: int,
    ):
        self._ready: queue.Queue[Any] = queue.Queue(prefetch - 1)  # the thread holds one more
        self._stop = threading.Event()
        self._readers, self._put = readers, put
        self._batches = batches(readers)
        self._thread = threading.Thread(target=self._run, name="jdaso-data", daemon=True)
        self._thread.start()

    def take(self, limit_seconds: float) -> Any:
        """Waits for the next batch.

        Raises:
            TimeoutError: the batch did not come in time.
            Exception: reading the batch raised it.
        """
        try:
            found = self._ready.get(timeout=limit_seconds)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(found, _Failed):
            raise found.error
        return found

    def close(self) -> None:
        """Ends the thread and drops its batches."""
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
        """Waits until a batch is taken; returns False if the loader was closed first."""
        while not self._stop.is_set():
            try:
                self._ready.put(found, timeout=_LOOK_SECONDS)
                return True
            except queue.Full:
                continue
        return False
