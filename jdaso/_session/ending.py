"""The end of a session's work: exchanges in flight are completed, or given up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._base.errors import NodeError, summary
from .._jax.host_call import STEP_ERRORS, steps_called
from .._nodes.control import Control
from .._nodes.own_work import await_own_work
from .channels import Channels

log = logging.getLogger("jdaso")


_LAST_SECONDS = 1.0
"""Time for exchanges in flight to complete once the program has failed."""


class Ending(NamedTuple):
    """The outcome of a session's work.

    Attributes:
        failed: whether a node failed, or the program.
        stuck: whether a thread of this node is still inside MPI or a step.
        error: an error that the program has not seen yet.
    """

    failed: bool
    stuck: bool
    error: Exception | None


def end_work(
    control: Control,
    closing: Sequence[Callable[[bool], None]],
    devices: Sequence[Any],
    channels: Channels,
    fail: Callable[[str], None],
    *,
    after_error: bool,
) -> Ending:
    """Completes the work of a session: closes its users, then steps, then exchanges.

    Args:
        control: the nodes.
        closing: functions, each called with `after_error`.
        devices: this node's, whose steps must end.
        channels: those with exchanges in flight.
        fail: notifies the other nodes of an error.
        after_error: whether the program has ended with an error.
    """
    failed, stuck = after_error, False
    if after_error:
        control.known.end_waits_in(_LAST_SECONDS)
    known, unsaid = control.broken, None
    for close in list(closing):
        try:
            close(after_error)
        except Exception as error:  # close the rest all the same
            unsaid = error
            if isinstance(error, NodeError):
                failed = True
                fail(summary(error))
    try:
        level = logging.DEBUG if after_error else logging.ERROR
        await_steps(control, devices, "steps that it has called", level)
    except NodeError as error:
        failed, stuck, unsaid = True, True, error
        fail(summary(error))
    failed = failed or bool(control.broken or control.given_up or control.known.failure)
    stuck |= not channels.close(failed=failed, after_error=after_error)
    error = control.broken if control.broken is not known else None
    if error is not None:
        fail(summary(error))
    return Ending(failed or error is not None, stuck, error or unsaid)


def await_steps(control: Control, devices: Sequence[Any], what: str, level: int) -> None:
    """Waits until the steps that this thread has called have run, and logs the error of one.

    The error is not raised. Reading the step's result raises the error, or has raised it already:
    failed results of other optimizers and of earlier sessions are found too, if they are held.

    Args:
        control: the nodes.
        devices: this node's.
        what: the steps, for messages.
        level: of the log's line.

    Raises:
        NodeError: the steps do not end; see `await_own_work`.
    """
    try:
        await_own_work(control, steps_called(devices), what)
    except STEP_ERRORS as error:
        log.log(level, "A step failed: %s", error)
