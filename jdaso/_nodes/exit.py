"""The end of a process with open sessions: nothing in flight is dropped, and no other node hangs.

A Python process that ends with an exception calls MPI_Finalize, which waits for all others. They
wait for this node's next exchange: the job hangs and names no cause. So an uncaught exception first
notifies the other nodes, gives them time to report, and then ends the whole job.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from .._base.errors import summary
from .._launch.early_failure import leave_to_sessions
from .._launch.environment import survives_deaths
from .._launch.last_words import speak_out
from .._launch.reports import say_failed
from .._mpi.abort import abort, end_job, ends_job, finalize, spare_job
from .._mpi.between import send_failure
from .._mpi.requests import poll
from .control import Control
from .detector import Detector

log = logging.getLogger("jdaso")


@runtime_checkable
class Member(Protocol):
    """A session, as seen by the end of its process."""

    control: Control

    def fail(self, text: str) -> None:
        """Notifies the other nodes that this one has failed."""

    def close(self) -> None:
        """Leaves the other nodes in the agreed order."""

    def disown(self) -> None:
        """Forgets threads and communicators: the process was forked, and is not a node."""


_GRACE_SECONDS = 6.0
_FINALIZE_SECONDS = 5.0

_open: dict[Member, list[Member]] = {}
"""Open sessions, in the same order on all nodes, dropped ones included.

Each with the failed sessions that this process had closed before it opened this one.
"""

_failed: list[Member] = []
_settled: list[Member] = []  # like those that failed, kept whole: MPI may write into their buffers
_leaves, _has_left = threading.Event(), threading.Event()
_waits: list[Callable[[], Callable[[], object]]] = []
_state = {"installed": False, "bereft": False, "began": False}


def watch(session: Member) -> None:
    """Closes this session when the process ends, if it is still open."""
    install()
    atexit.unregister(_end)  # functions run in reverse order: MPI, started since, must end later
    atexit.register(_end)
    if survives_deaths() and not _state["began"]:  # in atexit functions Python starts no threads
        threading.Thread(target=_finalize, name="jdaso-finalize", daemon=True).start()
    _state["began"] = True
    leave_to_sessions()
    _open[session] = list(_failed)


def wait_at_end(begin: Callable[[], Callable[[], object]]) -> None:
    """Calls `begin` when the process ends, before JAX and MPI end, unless the job is ended.

    `begin` returns a function that is called until it is true; after an error, some seconds only.
    """
    _waits.append(begin)


def open_members() -> list[Member]:
    """Returns the sessions of this process that are open, in the order of their opening."""
    return list(_open)


def unwatch(session: Member, *, failed: bool = False, stuck: bool = False) -> None:
    """Notes a closed session; after a failure the process must not wait in MPI_Finalize.

    All ranks open a session together. Once one of all ranks has closed normally, no other rank
    waits for this one in a session that has failed, and that this rank had closed before.

    Args:
        session: the session.
        failed: something went wrong between the nodes.
        stuck: one of its threads is still inside MPI, so MPI cannot be finalized normally.
    """
    failed_before = _open.pop(session, [])
    if stuck:
        end_job()
    _state["bereft"] |= bool(session.control.known.dead)
    if session.control.alone:
        return
    if failed or stuck:
        _failed.append(session)
    elif session.control.topology.world_rank is None:
        for each in [x for x in _failed if x in failed_before]:
            _failed.remove(each)
            _settled.append(each)
            each.control.detector.stop()
            each.control.detector.end()  # a rank that closes the failed one later waits for this


def is_bereft() -> bool:
    """Returns whether a session of this process has lost nodes."""
    return bool(_state["bereft"])


def _leave_to_parent() -> None:
    """Forgets all sessions in a forked process, which is not a node and does not end as one."""
    for session in _open:
        session.disown()
    for each in (_open, _failed, _settled, _waits):
        each.clear()
    spare_job()
    leave_to_sessions()
    _state.update(bereft=False, began=False)


os.register_at_fork(after_in_child=_leave_to_parent)


def install() -> None:
    """Installs the handlers for the end of the process; only once."""
    if _state["installed"]:
        return
    _state["installed"] = True
    previous = sys.excepthook

    def hook(kind, error, trace):
        previous(kind, error, trace)
        _doom(summary(error))

    sys.excepthook = hook
    atexit.register(_end)


def _doom(text: str) -> None:
    """Makes the job end with this process, which ends with an error.

    Without an open session, only nodes that start their next one, and would wait there, end.
    """
    sessions = [session for session in _open if not session.control.alone]
    if sessions:
        end_job()
    elif _state["began"] and not ends_job():
        if not _failed:  # else a session has reported its failure
            say_failed()
        if not _state["bereft"]:
            send_failure(text)
    for session in sessions:
        session.fail(text)


def _end() -> None:
    if not ends_job():
        for session in list(_open):
            try:
                session.close()
            except Exception:
                log.exception("jdaso could not close a session at exit")
                end_job()
    if not ends_job() and not _failed:
        _wait_at_end()
        if _state["bereft"]:
            _leave_mpi()
        return
    detectors = [session.control.detector for session in (*_open, *_failed)]
    speak_out()
    for detector in detectors:
        with contextlib.suppress(Exception):  # MPI has been finalized
            detector.end()
    # Without a detector nothing reports that the others are ready.
    poll(lambda: detectors and all(map(_may_end, detectors)), limit_seconds=_GRACE_SECONDS)
    if not ends_job() and all(detector.known.all_failed() for detector in detectors):
        # All nodes have the error; once their programs have ended, MPI can be finalized as usual.
        if _all_have_ended(detectors):
            for detector in detectors:
                detector.stop()
            if any(detector.known.dead for detector in detectors):
                _leave_mpi()
            else:
                _wait_at_end(_GRACE_SECONDS)  # others, without an error, may wait for this process
            return
        sys.stderr.write(
            "jdaso: another node has failed, and its program does not end (look for a thread that "
            "is not a daemon). The job is ended.\n"
        )
        speak_out()
    abort()


def _wait_at_end(limit_seconds: float = math.inf) -> None:
    """Begins what `wait_at_end` was given, and waits for each in turn."""
    for begin in _waits:
        with contextlib.suppress(Exception):  # MPI has ended, or a rank has failed
            poll(begin(), limit_seconds=limit_seconds)


def _all_have_ended(detectors: list[Detector]) -> bool:
    """Waits for the other nodes' programs: MPI_Finalize would wait for a stuck one for ever."""
    limit = max(detector.known.patience.limit_seconds("end") for detector in detectors)
    ended = lambda: all(detector.known.all_ended() for detector in detectors)  # noqa: E731
    return bool(poll(ended, limit_seconds=limit))


def _leave_mpi() -> None:
    """Calls MPI_Finalize with a limit: after failed ranks Open MPI 5.0.11 may wait in it for ever.

    If MPI waits, mpi4py's own call, the last of all, returns at once with the error that MPI is
    already finalized.
    """
    _leaves.set()
    _has_left.wait(_FINALIZE_SECONDS)


def _finalize() -> None:
    """The thread that finalizes MPI on request."""
    _leaves.wait()
    finalize()
    _has_left.set()


def _may_end(detector: Detector) -> bool:
    """Returns whether the others are ready; before an abort they must all have reported."""
    return detector.known.all_ended() if ends_job() else detector.known.all_failed()
