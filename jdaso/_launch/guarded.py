"""The guard of a job, a process of its own: its start, its messages, its end."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import guard
from .guard import KILL_SECONDS, Job


class Guarded:
    """Context with a guard, which ends the job if this process is killed.

    Args:
        grace_seconds: how long a job that is asked to stop may take to save.
        sources: file descriptors of the job's output, which the guard reads on.
    """

    def __init__(self, grace_seconds: float, sources: Sequence[int]):
        self._ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._knows = guard.as_message(None)
        program = [sys.executable, "-I", "-S", str(Path(guard.__file__).resolve())]
        with its:
            self._process = subprocess.Popen(
                [*program, str(grace_seconds), *map(str, sources)],
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=sources,
                start_new_session=True,  # survives a signal to this process's group
            )

    def tell(self, job: Job | None) -> None:
        """Sends the guard the job's state, if it has changed."""
        message = guard.as_message(job)
        if message != self._knows:
            with contextlib.suppress(OSError):  # the guard is stopped or gone; we try again soon
                self._ours.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._knows = message

    def __enter__(self) -> Guarded:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        try:
            self._process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(KILL_SECONDS)
