"""Passes on a job's output: every byte, in order and at once, even if its reader stalls or ends.

    job --pipe--> pump (a thread) --queue--> outlet (a thread) --> standard output or error

The pipes outlive a job, so no end of file marks its end: processes that a job left running may
hold them open for ever. A reader that pauses blocks the job, as it would without us, but not the
supervisor. If the reader is gone or a disk is full, unwritable output is lost; the job goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import termios
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO, cast

Look = Callable[[bytes], bytes]
"""Reads bytes on their way and returns those meant for the user."""

_PIECE_BYTES = 1 << 16
_MOST_BYTES = 1 << 20
"""Bytes that an outlet holds before the job has to wait for the reader."""

_SETTLE_SECONDS = 5.0
_NOTHING = b""


def standard_input() -> int | None:
    """A job's standard input: ours, unless we run in the background of a terminal.

    There a read would stop one of our processes; the job, in its own session, would take input that
    is typed for the shell.
    """
    if sys.__stdin__ is None:
        return subprocess.DEVNULL
    with contextlib.suppress(OSError):
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return subprocess.DEVNULL
    return None


def open_standard_streams() -> None:
    """Opens any closed descriptors among 0, 1 and 2, so that no file of ours takes their number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


class Outlet:
    """Writes to one stream of this process, in its own thread."""

    def __init__(self, stream: TextIO | None, name: str):
        self._descriptor = None if stream is None else stream.fileno()
        self._name = name
        self._waiting: deque[bytes] = deque()
        self._bytes, self._lost, self._why = 0, 0, ""
        self._full_is_no_reason = self._closes = False
        self._line_ended = True
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="jdaso-outlet", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Enqueues bytes; waits while the reader is far behind, unless `admit` allows more."""
        if not data:
            return
        with self._change:
            self._change.wait_for(lambda: self._bytes < _MOST_BYTES or self._full_is_no_reason)
            self._add(data)

    def admit(self, full_too: bool) -> None:
        """Sets whether `put` accepts bytes without waiting for the reader."""
        with self._change:
            self._full_is_no_reason = full_too
            self._change.notify_all()

    def say(self, text: str) -> None:
        """Enqueues a line of the supervisor's own; never waits."""
        with self._change:
            self._add(b"" if self._line_ended else b"\n")
            self._add(os.fsencode(f"{text}\n"))

    def complaint(self) -> str:
        """Returns a message about bytes lost since the last call; empty if none were."""
        with self._change:
            lost, self._lost = self._lost, 0
        if not lost:
            return ""
        return f"{lost} bytes could not be written to {self._name} ({self._why}) and are lost."

    def is_done(self, seconds: float) -> bool:
        """Returns whether everything is written; waits at most `seconds`."""
        with self._change:
            return self._change.wait_for(lambda: not self._bytes, seconds)

    def _add(self, data: bytes) -> None:
        if data:
            self._waiting.append(data)
            self._bytes += len(data)
            self._line_ended = data.endswith(b"\n")
            self._change.notify_all()

    def _write_all(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting)
                data = b"".join(self._waiting)
                self._waiting.clear()
            lost = self._write(data)
            with self._change:
                self._lost += lost
                self._bytes -= len(data)
                self._change.notify_all()

    def _write(self, data: bytes) -> int:
        """Writes all bytes; returns the number that could not be written."""
        if self._descriptor is None:
            return 0
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest[:_PIECE_BYTES]) :]
            except BlockingIOError:  # another process sharing the stream made it non-blocking
                select.select([], [self._descriptor], [], 1.0)
            except OSError as error:
                self._why = error.strerror or str(error)
                return len(rest)
        return 0


class _Pump:
    """Reads a pipe that jobs write into, and puts all bytes into an outlet."""

    def __init__(self, outlet: Outlet):
        self.outlet, self.look = outlet, cast(Look, _pass)
        self.source, self.target = os.pipe()
        os.set_blocking(self.source, False)
        self._wake, self._waker = os.pipe()
        self._settled = threading.Event()
        threading.Thread(target=self._run, name="jdaso-pump", daemon=True).start()

    def settle(self) -> None:
        """Returns once everything in the pipe has been put into the outlet."""
        self._settled.clear()
        self.outlet.admit(True)
        os.write(self._waker, b"x")
        self._settled.wait(_SETTLE_SECONDS)
        self.outlet.admit(False)

    def _run(self) -> None:
        poll = select.poll()
        for source in (self.source, self._wake):
            poll.register(source, select.POLLIN)
        while True:
            if any(source == self._wake for source, _ in poll.poll()):
                os.read(self._wake, 1)
                count = fcntl.ioctl(self.source, termios.FIONREAD, bytes(4))
                left = int.from_bytes(count, sys.byteorder)
                while left > 0:  # but no more: a process may write for ever
                    left -= self._move(min(left, _PIECE_BYTES))
                self.outlet.put(self.look(_NOTHING))
                self._settled.set()
            else:
                self._move(_PIECE_BYTES)

    def _move(self, most: int) -> int:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.source, most)
            self.outlet.put(self.look(data))
            return len(data)
        return most


def _pass(data: bytes) -> bytes:
    return data


class Relay:
    """The output of successive jobs, with the supervisor's own lines in between.

    If standard output and standard error are one file (``2>&1``), jobs get one pipe for both, so
    that the order of their output is kept.
    """

    def __init__(self) -> None:
        out, err = sys.__stdout__, sys.__stderr__
        both = None not in (out, err) and os.path.sameopenfile(1, 2)
        self._out = Outlet(out, "standard output")
        self._err = self._out if both else Outlet(err, "standard error")
        self._pumps = [_Pump(self._out)] if both else [_Pump(self._out), _Pump(self._err)]

    @property
    def outputs(self) -> tuple[int, int]:
        """The file descriptors that a job gets as standard output and standard error."""
        return self._pumps[0].target, self._pumps[-1].target

    @property
    def sources(self) -> list[int]:
        """The read ends of the pipes that jobs write into; held open while a job runs."""
        return [pump.source for pump in self._pumps]

    def look_with(self, make: Callable[[], Look]) -> None:
        """Passes later output through a `Look`, which returns all it holds if given no bytes."""
        for pump in self._pumps:
            pump.look = make()

    def say(self, text: str) -> None:
        """Writes a line of the supervisor's own to standard error; never waits, never fails."""
        self._err.say(f"jdaso run: {text}")

    def settle(self) -> None:
        """Enqueues all output of a job that has ended, before any line that follows."""
        for pump in self._pumps:
            pump.settle()
        self._complain()

    def close(self, stops: Callable[[], bool]) -> None:
        """Returns once everything is written, however slow the reader, or once `stops` is True."""
        for outlet in (self._out, self._err):
            while not outlet.is_done(0.1) and not stops():
                pass
            if outlet is self._out:
                self._complain()

    def _complain(self) -> None:
        for outlet in dict.fromkeys((self._out, self._err)):
            if complaint := outlet.complaint():
                self.say(complaint)
