"""The last output of a process: written, and read by the launcher before the job ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
import sys
import termios
import time

_READ_SECONDS = 2.0


def speak_out() -> None:
    """Has the launcher read all that this process printed, before the job is ended.

    What still lies in a rank's pipes when a rank ends the job is discarded: last words were lost on
    a busy machine. Waits 2 seconds at most once all is in the pipes; to write into one that is full
    takes as long as for `print`. Terminals, files, and pipes whose reader is gone are not waited
    for, nor pipes where the system cannot tell (only Linux can).
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or replaced by something else
            stream.flush()
    limit = time.monotonic() + _READ_SECONDS
    while any(map(_unread_bytes, (1, 2))) and time.monotonic() < limit:
        time.sleep(0.01)


def _unread_bytes(descriptor: int) -> int:
    """How much was written into a pipe and may yet be read; 0 for what is no pipe."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return 0
        poller = select.poll()
        poller.register(descriptor, 0)
        if poller.poll(0):  # an error: nobody is there to read it
            return 0
        count = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    except OSError:  # closed, or a system that cannot tell
        return 0
    return int.from_bytes(count, sys.byteorder)
