"""How all nodes stop at the same step when one of them is told to: a signal, say.

A loop runs ahead of the device, and each node's by another number of steps, so that a step has to
be found that no loop has passed, without waiting for any of them. Node 0 leads:

    any node   ASK   -> node 0    it was told to stop
    node 0     HOLD  -> all       "promise a step before which you will not pass"
    each node  HELD  -> node 0    the step that its loop comes to next, where it pauses
    node 0     STOP  -> all       the latest of them: all stop there

The threads that look out for other nodes bring and take the messages, so that it does not matter
what the loops wait for. Where a node dies, the first of the others leads, and begins anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from .._launch import signals as _signals

ASK, HOLD, HELD, STOP = range(4)

_REPEAT_SECONDS = 10.0
"""Schedulers and launchers both tell a process: signals so close together mean the same."""


class Stopping:
    """This node's part of it.

    Args:
        node: this node.
        nodes: how many there are.
        send: sends a node a message, one of the four, and a step.

    Attributes:
        held: what another handler of a signal raised, once this node was told by one.
    """

    def __init__(self, node: int, nodes: int, send: Callable[[int, int, int], None]):
        self._node, self._living, self._send = node, list(range(nodes)), send
        self._signalled_at: float | None = None
        self.held: BaseException | None = None
        self._told = self._asked = self._holds = False
        self._step = -1
        self._stop: int | None = None
        self._held: dict[int, int] = {}
        self._change = threading.Condition()

    def on_signals(self, signals: Iterable[int]) -> None:
        """Takes these signals as being told to stop; a later one ends the process at once.

        Signals are taken in the main thread only; in others nothing is done.
        """
        _signals.take(signals, self)

    def signalled(self) -> bool:
        """A signal came; whether the process is to end at once, as one came long before it."""
        self._told, now = True, time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
        return now > self._signalled_at + _REPEAT_SECONDS

    def hold(self, error: BaseException) -> None:
        """Keeps what another handler of the signal raised until the run is saved."""
        self.held = self.held or error

    def tell(self) -> None:
        """This node is told to stop."""
        self._told = True

    def stops_at(self, step: int, check: Callable[[], None]) -> bool:
        """Whether all nodes stop after `step`; pauses while they agree.

        Args:
            step: completed updates; each call's larger than the one before.
            check: called while it pauses; raises where that is in vain.
        """
        if len(self._living) == 1:
            return self._told or self._stop is not None
        with self._change:
            self._step = step
            while self._holds and self._stop is None:
                self._change.wait(0.1)
                check()
            return self._stop is not None and step >= self._stop

    def look(self) -> None:
        """Called by the detector now and then: says what this node was told."""
        if self._told and not self._asked:
            self._asked = True
            self._say(self._living[0], ASK, 0)

    def take(self, source: int, what: int, step: int) -> None:
        """Takes a message; called by the detector."""
        if self._stop is not None and what in (ASK, HOLD):  # it is known already
            self._say(source, STOP, self._stop)
        elif what == ASK and not self._held:
            self._held = {-1: -1}  # asked twice, it begins once
            self._tell_all(HOLD, 0)
        elif what == HOLD:
            with self._change:
                self._holds = True
                step = self._step + 1
            self._say(source, HELD, step)
        elif what == HELD:
            self._held[source] = step
            self._stop_if_all_hold()
        elif what == STOP and self._stop is None:
            with self._change:
                self._stop = step
                self._change.notify_all()
            if self._held:  # it leads, and was told by one whom another leader had told
                self._tell_all(STOP, step)

    def lost(self, node: int) -> None:
        """Called by the detector: a node has died, and with it what it knew."""
        self._living.remove(node)
        self._held.pop(node, None)
        if self._stop is not None:  # it may have been about to tell the others
            self._tell_all(STOP, self._stop)
        else:  # it may be who leads, or who was told
            self._told, self._asked = self._told or self._holds, False
            self._stop_if_all_hold()

    def close(self) -> None:
        """Gives the signals back."""
        _signals.give_back(self)

    def _stop_if_all_hold(self) -> None:
        if self._stop is None and set(self._living) <= set(self._held):
            self._tell_all(STOP, max(self._held.values()))

    def _tell_all(self, what: int, step: int) -> None:
        for node in list(self._living):
            self._say(node, what, step)

    def _say(self, node: int, what: int, step: int) -> None:
        if node == self._node:
            self.take(node, what, step)
        else:
            self._send(node, what, step)
