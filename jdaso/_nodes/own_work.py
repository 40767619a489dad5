"""The wait for this node's own steps at the end of a session, with a limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .._mpi.requests import poll
from .._mpi.ulfm import InThread
from .control import Control

log = logging.getLogger("jdaso")

_LONGEST_SECONDS = 3600.0
"""The longest time for the steps once this node takes part in no exchange."""

_LOOK_SECONDS, _WARN_SECONDS = 1.0, 30.0
"""Time between two checks for that, and until the first warning."""


def await_own_work(control: Control, call: Callable[[], None], what: str) -> None:
    """Makes a call that waits for this node's own work, and logs that it still waits.

    Args:
        control: the nodes.
        call: the call; another thread makes it.
        what: the work that the call waits for.

    Raises:
        NodeError: the work did not end, and this node took part in nothing for an hour.
    """
    if control.alone:
        return call()
    heartbeats, node = control.known.heartbeats, control.topology.rank
    try:
        work = InThread(call, "jdaso-steps")
    except RuntimeError:  # Python is shutting down and starts no more threads
        return call()
    begin, warn_at = time.monotonic(), _WARN_SECONDS
    seen, since = heartbeats.taken_part(node), begin
    while not poll(work.Test, limit_seconds=_LOOK_SECONDS):
        now = time.monotonic()
        if (last := heartbeats.taken_part(node)) != seen:
            seen, since = last, now
        if now - since > _LONGEST_SECONDS:
            raise control.error(
                f"This node waits for {what}, for {now - begin:.0f} s now, and took part in "
                f"no exchange for {_LONGEST_SECONDS:g} s. Look for a callback or a loop in a "
                "step that does not end."
            )
        if now - begin > warn_at:
            text = "%s This node waits for %s, for %.0f s now (longest: %g s after the last "
            text += "exchange)."
            about = what, now - begin, _LONGEST_SECONDS
            log.warning(text, control.topology.prefix(), *about)
            warn_at *= 2
    work.result()
