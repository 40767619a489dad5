"""A rank that fails before its session reports itself and ends the job, since others wait for it.

From the first session on, `_nodes.exit` handles the end of the process.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from .._base.errors import NodeError, summary
from .environment import launched_rank, launched_ranks
from .last_words import speak_out

_ALIKE_SECONDS = 1.0
"""Seconds that a rank failing before its session waits for others that fail in the same way."""

_state = {"watches": False, "meets": False, "over": False, "failed": False}


def watch_rank(abort: Callable[[], None]) -> None:
    """Makes a rank that fails before its session end the job, if a launcher started several.

    Does nothing if no launcher started this process.

    Args:
        abort: ends all ranks of the job, if this process has started MPI; else returns.
    """
    if launched_ranks() < 2 or _state["watches"]:
        return
    _state["watches"] = True
    previous = sys.excepthook

    def hook(kind, error, trace):
        previous(kind, error, trace)
        shared = isinstance(error, NodeError) and _state["meets"]
        if _state["over"] or shared or launched_ranks() < 2:
            return
        _state["failed"] = True
        sys.stderr.write(
            f"[rank {launched_rank()} of {launched_ranks()}, host {socket.gethostname()}] This "
            f"rank failed before it made its Session: {summary(error)}. The others would wait "
            "for it. The job is ended.\n"
        )

    sys.excepthook = hook
    atexit.register(_end, abort)
    os.register_at_fork(after_in_child=leave_to_sessions)


def note_meeting() -> None:
    """Notes that this rank meets the others: a `NodeError` from here on is theirs too."""
    _state["meets"] = True


def leave_to_sessions() -> None:
    """Leaves failures to the session from here on; a forked process is not a rank."""
    _state.update(over=True, failed=False)


def _end(abort: Callable[[], None]) -> None:
    """Ends a job without a session to notify; launchers detect a rank killed by a signal."""
    if not _state["failed"]:
        return
    speak_out()
    time.sleep(_ALIKE_SECONDS)
    abort()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
