"""Signals that ask a supervisor to end, and its pauses, which they cut short."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator

_REPEAT_SECONDS = 0.3
"""Seconds within which two signals count as one: one may go to both a process and its group."""

_STOPS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU")
_AT_ONCE = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a person sends from a keyboard: a second one ends everything at once."""


class Asked:
    """The signals that this process has got, for the thread that watches the job.

    Attributes:
        signal: the first signal that asked this process to end; None before.
        at: when that signal came.
        count: the number of signals; a repetition does not count.
        at_once: whether everything must end now.
    """

    def __init__(self):
        self.signal: int | None = None
        self.at, self.count, self.at_once = 0.0, 0, False
        self._wake, self._waker = os.pipe()
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Takes signals, from the main thread."""
        numbers = [signal.Signals[name] for name in _STOPS]
        numbers = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]  # nohup
        previous = {number: signal.signal(number, self._take) for number in numbers}
        # A parent may have ignored SIGCHLD, which would lose the status of the job.
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, previous)
        waker = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(waker)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def to_end(self) -> bool:
        """Returns whether a signal has asked this process to end."""
        return self.signal is not None

    def wake(self) -> None:
        """Ends the pause of the main thread; called by other threads."""
        with contextlib.suppress(OSError):
            os.write(self._waker, b"x")

    def pause(self, seconds: float) -> None:
        """Waits until something happens, at most `seconds`."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if poll.poll(1000 * seconds):
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 1 << 16)

    def pause_for(self, seconds: float) -> None:
        """Waits `seconds`, or until this process is asked to end."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.to_end():
            self.pause(left)

    def _take(self, number: int, _frame: object) -> None:
        now = time.monotonic()
        if self.signal is None:
            self.signal, self.at = number, now
        elif now < self.at + _REPEAT_SECONDS:
            return
        elif number in _AT_ONCE:
            self.at_once = True
        self.count += 1
