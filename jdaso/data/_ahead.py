"""Threads that read the next batches and put them on the devices ahead of time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_END_SECONDS = 10.0


class _Failed:
    def __init__(self, error: BaseException):
        self.error = error


class Ahead:
    """Batches in their order, read by several threads at once and kept ready on the devices.

    Each thread takes the next number, reads that batch, and holds it until fewer than `prefetch`
    earlier batches are still to be taken. The batch that the loop needs next is never the one that
    waits. All threads start at once, so that a limit on memory (each has a stack) is hit at the
    start or never.

    The threads are daemons: one that hangs in a file system does not keep a failed process from
    ending, and with it all nodes. But a thread that is inside the HDF5 library when Python ends
    would keep the library's lock, for which the process's exit waits; and one that dropped a JAX
    array so late would crash the process. So `close` waits for the threads and drops their batches
    itself.

    Args:
        read: reads a batch, given its number; called by the threads.
        put: puts a batch on the devices.
        count: the number of batches; they are numbered from 0.
        workers: the number of threads.
        prefetch: the maximum number of batches on the devices besides those taken.
    """

    def __init__(
        self,
        read: Callable[[int], Any],
        put: Callable[[Any], Any],
        count: int,
        workers: int,
        prefetch: int,
    ):
        self._read, self._put, self._count, self._prefetch = read, put, count, prefetch
        self._changed = threading.Condition()
        self._ready: dict[int, Any] = {}
        self._begun = self._taken = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        try:
            for _ in range(workers):
                thread = threading.Thread(target=self._run, name="jdaso-data", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:  # as where the system allows no more threads
            self.close()
            raise

    def take(self, limit_seconds: float) -> Any:
        """Waits for the next batch.

        Raises:
            TimeoutError: the batch was not ready in time.
            Exception: reading the batch, or putting it on the devices, raised it.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._taken in self._ready, limit_seconds):
                raise TimeoutError
            found = self._ready.pop(self._taken)
            self._taken += 1
            self._changed.notify_all()
        if isinstance(found, _Failed):
            raise found.error
        return found

    def close(self) -> None:
        """Ends the threads, each after its current read, and drops their batches.

        A read that takes longer than 10 s is no longer waited for.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        end = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        self._ready.clear()

    def _run(self) -> None:
        while (number := self._next()) is not None:
            try:
                batch = self._read(number)
            except BaseException as error:
                batch = _Failed(error)
            if not self._may_put(number):
                return
            self._land(number, batch)
            batch = None  # nothing of it is left while the next one is read

    def _next(self) -> int | None:
        """The number of the next batch; None if there is none, or after `close`."""
        with self._changed:
            if self._closed or self._begun == self._count:
                return None
            self._begun += 1
            return self._begun - 1

    def _may_put(self, number: int) -> bool:
        """Waits until a batch may be put on the devices; False after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or number < self._taken + self._prefetch)
            return not self._closed

    def _land(self, number: int, batch: Any) -> None:
        """Puts a batch on the devices and keeps the only reference to it, which `close` drops."""
        try:
            self._ready[number] = batch if isinstance(batch, _Failed) else self._put(batch)
        except BaseException as error:
            self._ready[number] = _Failed(error)
        with self._changed:
            self._changed.notify_all()
