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


def apart(read: Callable[[int], Any], position: int, stop: threading.Event) -> Any:
    """What `read` gives, called on a thread that keeps nobody from ending.

    Python waits at its exit for threads of a pool, as grain's. One that sits in a file system that
    hangs would keep a process that failed from ending, and with it all nodes.
    """
    found: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            found.put((read(position), None))
        except BaseException as error:
            found.put((None, error))

    threading.Thread(target=run, name="jdaso-read", daemon=True).start()
    while not stop.is_set():
        try:
            batch, error = found.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        if error is not None:
            raise error
        return batch
    raise InterruptedError("Nobody wants this batch any more.")


class Ahead:
    """Takes batches from an iterator, puts them on the devices, and keeps them.

    Args:
        batches: an iterator with ``close``.
        put: a batch on the devices.
        prefetch: how many batches are there at most, besides those taken; 2 or more.
    """

    def __init__(
        self,
        batches: Callable[[threading.Event], Any],
        put: Callable[[Any], Any],
        prefetch: int,
    ):
        self._ready: queue.Queue[Any] = queue.Queue(prefetch - 1)  # and one in the thread's hands
        self._stop = threading.Event()
        self._batches, self._put = batches(self._stop), put
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
