"""The last output of a process: waits until the launcher has read it, before the job ends."""

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
    """Waits until the launcher has read everything that this process printed.

    Output that is still in a rank's pipes when a rank ends the job is discarded: on a busy machine
    final messages were lost. Waits at most 2 seconds once everything is in the pipes; writing into
    a full pipe takes as long as for `print`. Does not wait for terminals, files, pipes whose reader
    is gone, or pipes of a system that cannot report their contents (only Linux can).
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or replaced by something else
            stream.flush()
    limit = time.monotonic() + _READ_SECONDS
    while any(map(_unread_bytes, (1, 2))) and time.monotonic() < limit:
        time.sleep(0.01)


def _unread_bytes(descriptor: int) -> int:
    """Bytes written into a pipe and not yet read; 0 if the descriptor is not a pipe."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return 0
        poller = select.poll()
        poller.register(descriptor, 0)
        if poller.poll(0):  # an error: the reader is gone
            return 0
        count = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    except OSError:  # closed, or the system cannot report it
        return 0
    return int.from_bytes(count, sys.byteorder)
