"""How a process with open sessions ends: nothing in flight is dropped, and no other node hangs.

A Python process that ends by an exception calls MPI_Finalize, which waits for all others, which
wait for this one's next exchange: the job hangs and names nobody. So an uncaught exception tells
the other nodes first, gives them time to say what they know, and then ends the whole job. Before
the first session nobody can be told: a rank that fails there names itself, and ends the job.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from .._errors import NodeError
from .._launch.environment import launched_rank, launched_ranks, survives_deaths
from .._launch.last_words import speak_out

if TYPE_CHECKING:
    from .._session import Session
    from .detector import Lookout

log = logging.getLogger("jdaso")

_GRACE_SECONDS = 6.0
_FINALIZE_SECONDS = 5.0
_ALIKE_SECONDS = 1.0
"""Seconds that a rank which fails before its session waits for others that fail alike."""

_open: dict[Session, None] = {}  # in the order of all nodes; also sessions that were dropped
_failed: list[Session] = []  # whole, as MPI may yet write into what their channels hold
_leaves, _has_left = threading.Event(), threading.Event()
_state = {"installed": False, "doomed": False, "bereft": False, "began": False, "early": False}


def watch(session: Session) -> None:
    """Closes this session at the latest when the process ends."""
    _install()
    if survives_deaths() and not _state["began"]:  # in atexit's functions Python starts no threads
        threading.Thread(target=_finalize, name="jdaso-finalize", daemon=True).start()
    _state["began"] = True
    _open[session] = None


def unwatch(session: Session, *, failed: bool = False, stuck: bool = False) -> None:
    """The session was closed; after a failure the process must not wait in MPI_Finalize.

    Args:
        session: the session.
        failed: something went wrong between the nodes.
        stuck: one of its threads is still inside MPI, which can then not be left in order.
    """
    _open.pop(session, None)
    _state["doomed"] |= stuck
    _state["bereft"] |= bool(session.control.lookout.dead)
    if (failed or stuck) and not session.control.alone:
        _failed.append(session)


def is_bereft() -> bool:
    """Whether a session of this process has lost nodes."""
    return bool(_state["bereft"])


def _leave_to_parent() -> None:
    """In a forked process: it is no node, and its end is not that of one."""
    for session in _open:
        session.disown()
    _open.clear()
    _failed.clear()
    _state.update(doomed=False, bereft=False, early=False, began=True)  # what fails is no rank


os.register_at_fork(after_in_child=_leave_to_parent)


def watch_ranks() -> None:
    """Makes a rank that fails before its session end the job, if a launcher started several."""
    if launched_ranks() > 1:
        _install()


def _install() -> None:
    if _state["installed"]:
        return
    _state["installed"] = True
    previous = sys.excepthook

    def hook(kind, error, trace):
        previous(kind, error, trace)
        _doom(summary(error))
        if not _state["began"] and not isinstance(error, NodeError) and launched_ranks() > 1:
            _state["early"] = True
            sys.stderr.write(
                f"[rank {launched_rank()} of {launched_ranks()}, host {socket.gethostname()}] This "
                f"rank failed before it made its Session: {summary(error)}. The others would wait "
                "for it. The job is ended.\n"
            )

    sys.excepthook = hook
    atexit.register(_end)


def _doom(text: str) -> None:
    """This process ends by an error: the job will be ended with it."""
    sessions = [session for session in _open if not session.control.alone]
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


def _end_early() -> None:
    """Ends the job in which no session can be told; launchers notice one that dies of a signal."""
    speak_out()
    time.sleep(_ALIKE_SECONDS)
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        module.COMM_WORLD.Abort(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _end() -> None:
    if _state["early"]:
        _end_early()
    if not _state["doomed"]:
        for session in list(_open):
            try:
                session.close()
            except Exception:
                log.exception("jdaso could not close a session at exit")
                _state["doomed"] = True
    if not _state["doomed"] and not _failed:
        if _state["bereft"]:
            _leave_mpi()
        return
    lookouts = [session.control.lookout for session in (*_open, *_failed)]
    speak_out()
    for lookout in lookouts:
        with contextlib.suppress(Exception):  # MPI was ended
            lookout.end()
    limit = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < limit:  # without a look-out nobody can tell us when they are ready
        if lookouts and all(_may_end(lookout) for lookout in lookouts):
            break
        time.sleep(0.05)
    if not _state["doomed"] and all(lookout.all_failed() for lookout in lookouts):
        for lookout in lookouts:  # all nodes saw the error, and MPI can be left as usual
            lookout.stop()
        if any(lookout.dead for lookout in lookouts):
            _leave_mpi()
        return
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(1)


def _leave_mpi() -> None:
    """MPI_Finalize with a limit: after deaths Open MPI 5.0.11 may wait there for ever.

    Where it does, mpi4py's own call, last of all, ends at once: MPI says that it is one too many.
    """
    _leaves.set()
    _has_left.wait(_FINALIZE_SECONDS)


def _finalize() -> None:
    """A thread: leaves MPI when it is told to."""
    _leaves.wait()
    from mpi4py import MPI

    ctypes.CDLL(MPI.__file__).MPI_Finalize()  # without Python's lock, unlike mpi4py's
    _has_left.set()


def _may_end(lookout: Lookout) -> bool:
    """Where this process ends the job, the others have to have said what they know before."""
    return lookout.all_ended() if _state["doomed"] else lookout.all_failed()
