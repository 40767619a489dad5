"""Hands a job's output on: every byte, in order and at once, whatever becomes of the reader.

    job --pipe--> pump (a thread) --queue--> outlet (a thread) --> standard output or error

The pipes outlive a job, so that its end is never taken from theirs: what a job has left running may
hold them for ever. A reader that pauses holds the job up as it would without us, but not the
supervisor. One that is gone, or a disk that is full, loses what cannot be written; the job goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
import termios
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO, cast

Look = Callable[[bytes], bytes]
"""Looks at bytes on their way and returns those that are for the user."""

_PIECE_BYTES = 1 << 16
_MOST_BYTES = 1 << 20
"""Bytes that an outlet holds before the job has to wait for the reader."""

_SETTLE_SECONDS = 5.0
_NOTHING = b""


def open_standard_streams() -> None:
    """Opens those of descriptors 0, 1 and 2 that are closed, so that no file of ours takes one."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


class Outlet:
    """Writes to one stream of this process, in a thread of its own."""

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
        """Takes bytes to be written; waits while the reader is far behind, until `admit`."""
        if not data:
            return
        with self._change:
            self._change.wait_for(lambda: self._bytes < _MOST_BYTES or self._full_is_no_reason)
            self._add(data)

    def admit(self, full_too: bool) -> None:
        """Lets `put` wait no more, or again."""
        with self._change:
            self._full_is_no_reason = full_too
            self._change.notify_all()

    def say(self, text: str) -> None:
        """Takes a line of the supervisor's own, and never waits."""
        with self._change:
            self._add(b"" if self._line_ended else b"\n")
            self._add(os.fsencode(f"{text}\n"))

    def complaint(self) -> str:
        """Returns what was lost since this was last asked; empty if nothing was."""
        with self._change:
            lost, self._lost = self._lost, 0
        if not lost:
            return ""
        return f"{lost} bytes could not be written to {self._name} ({self._why}) and are lost."

    def is_done(self, seconds: float) -> bool:
        """Returns whether all has been written, within so many seconds."""
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
        """Writes all; how much could not be."""
        if self._descriptor is None:
            return 0
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest[:_PIECE_BYTES]) :]
            except BlockingIOError:  # whoever shares the stream with us has made it so
                select.select([], [self._descriptor], [], 1.0)
            except OSError as error:
                self._why = error.strerror or str(error)
                return len(rest)
        return 0


class _Pump:
    """Reads a pipe that jobs write into, and puts all into an outlet."""

    def __init__(self, outlet: Outlet):
        self.outlet, self.look = outlet, cast(Look, _pass)
        self.source, self.target = os.pipe()
        os.set_blocking(self.source, False)
        self._wake, self._waker = os.pipe()
        self._settled = threading.Event()
        threading.Thread(target=self._run, name="jdaso-pump", daemon=True).start()

    def settle(self) -> None:
        """Returns once all that is in the pipe has been put into the outlet."""
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
                while left > 0:  # and not more: something may write for ever
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
    """The output of jobs, one after another, and the supervisor's own lines between theirs.

    Where standard output and standard error are one file (``2>&1``) jobs get one pipe for both, so
    that the order of what they write is kept.
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
        """The ends at which all that jobs write arrives; held open while a job runs."""
        return [pump.source for pump in self._pumps]

    def look_with(self, make: Callable[[], Look]) -> None:
        """Has what comes from now on looked at; called with nothing, a look gives all it holds."""
        for pump in self._pumps:
            pump.look = make()

    def say(self, text: str) -> None:
        """Says something of the supervisor's own on standard error; never waits, never fails."""
        self._err.say(f"jdaso run: {text}")

    def settle(self) -> None:
        """Takes all that a job which has ended wrote; it comes before what is said next."""
        for pump in self._pumps:
            pump.settle()
        self._complain()

    def close(self, stops: Callable[[], bool]) -> None:
        """Returns once all is written, as late as the reader takes it, or once `stops`."""
        for outlet in (self._out, self._err):
            while not outlet.is_done(0.1) and not stops():
                pass
            if outlet is self._out:
                self._complain()

    def _complain(self) -> None:
        for outlet in dict.fromkeys((self._out, self._err)):
            if complaint := outlet.complaint():
                self.say(complaint)
