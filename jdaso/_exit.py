"""How a process with open sessions ends: nothing in flight is dropped, and no other node hangs.

A Python process that ends by an exception calls MPI_Finalize, which waits for all others, which
wait for this one's next exchange: the job hangs and names nobody. So an uncaught exception tells
the other nodes first, gives them time to say what they know, and then ends the whole job.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import time
from typing import Protocol, runtime_checkable

log = logging.getLogger("jdaso")

_GRACE_SECONDS = 6.0


@runtime_checkable
class Closable(Protocol):
    """What ends with the process."""

    @property
    def alone(self) -> bool:
        """Whether there is no other node."""
        ...

    def close(self) -> None:
        """Completes what is in flight."""
        ...

    def fail(self, text: str) -> None:
        """Tells the other nodes."""
        ...

    def all_failed(self) -> bool:
        """Whether all other nodes have failed too."""
        ...

    def end(self) -> None:
        """Tells the other nodes that this program has ended after a failure."""
        ...

    def all_ended(self) -> bool:
        """Whether all other nodes have said the same."""
        ...

    def stop_listening(self) -> None:
        """Makes no more MPI calls."""
        ...


_open: dict[Closable, None] = {}  # in the order of all nodes; also sessions that were dropped
_failed: list[Closable] = []
_state = {"installed": False, "doomed": False}


def watch(session: Closable) -> None:
    """Closes this session at the latest when the process ends."""
    if not _state["installed"]:
        _state["installed"] = True
        _previous = sys.excepthook

        def hook(kind, error, trace):
            _previous(kind, error, trace)
            doom(summary(error))

        sys.excepthook = hook
        atexit.register(_end)
    _open[session] = None


def unwatch(session: Closable, *, failed: bool = False, stuck: bool = False) -> None:
    """The session was closed; after a failure the process must not wait in MPI_Finalize.

    Args:
        session: the session.
        failed: something went wrong between the nodes.
        stuck: one of its threads is still inside MPI, which can then not be left in order.
    """
    _open.pop(session, None)
    _state["doomed"] |= stuck
    if (failed or stuck) and not session.alone:
        _failed.append(session)


def doom(text: str) -> None:
    """This process ends by an error: the job will be ended with it."""
    sessions = [session for session in _open if not session.alone]
    if sessions:
        _state["doomed"] = True
    for session in sessions:
        session.fail(text)


def summary(error: BaseException) -> str:
    """What an exception says, without the traceback that JAX puts into its own."""
    lines = str(error).splitlines()
    frames = [i for i, line in enumerate(lines) if line.lstrip().startswith("File ")]
    if not frames:
        return f"{type(error).__name__}: {error}"
    return " ".join(line for line in lines[frames[-1] + 1 :] if not line.startswith(("-", "For ")))


def _end() -> None:
    if not _state["doomed"]:
        for session in list(_open):
            try:
                session.close()
            except Exception:
                log.exception("jdaso could not close a session at exit")
                _state["doomed"] = True
    sessions = [session for session in (*_open, *_failed) if not session.alone]
    if not _state["doomed"] and not _failed:
        return
    last_words = [sys.stdout.flush, sys.stderr.flush, *(session.end for session in sessions)]
    for say in last_words:
        with contextlib.suppress(Exception):  # a closed stream, or an MPI that was ended
            say()
    limit = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < limit and not all(_may_end(session) for session in sessions):
        time.sleep(0.05)
    if not _state["doomed"] and all(session.all_failed() for session in sessions):
        for session in sessions:  # all nodes saw the error, and MPI can be left as usual
            session.stop_listening()
        return
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(1)


def _may_end(session: Closable) -> bool:
    """Where this process ends the job, the others have to have said what they know before."""
    return session.all_ended() if _state["doomed"] else session.all_failed()
