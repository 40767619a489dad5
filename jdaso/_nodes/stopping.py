"""Makes all nodes stop at the same step when one of them is asked to, for example by a signal.

A loop runs ahead of the device, by a different number of steps on each node, so the nodes must find
a step that no loop has passed, without waiting for any of them. Node 0 leads:

    any node   ASK   -> node 0    it was asked to stop
    node 0     HOLD  -> all       "promise a step before which you will not pass"
    each node  HELD  -> node 0    the step that its loop comes to next, where it pauses
    node 0     STOP  -> all       the latest of them: all stop there

The detectors' threads send and receive these messages, so it does not matter what the loops wait
for. If a node fails, the first of the remaining nodes leads, and begins anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from .._launch import signals as _signals

ASK, HOLD, HELD, STOP = range(4)

_REPEAT_SECONDS = 10.0
"""Signals within this time count as one, since schedulers and launchers both signal a process."""


class Stopping:
    """This node's part in the agreement.

    Args:
        node: this node.
        nodes: the number of nodes.
        send: sends a node one of the four messages, with a step.

    Attributes:
        held: the exception of another handler of the signal that asked this node to stop.
    """

    def __init__(self, node: int, nodes: int, send: Callable[[int, int, int], None]):
        self._node, self._living, self._send = node, list(range(nodes)), send
        self._signal: int | None = None
        self._signalled_at: float | None = None
        self.held: BaseException | None = None
        self._wanted = self._asked = self._holds = self._met = False
        self._step = -1
        self._stop: int | None = None
        self._held: dict[int, int] = {}
        self._change = threading.Condition()

    def on_signals(self, signals: Iterable[int]) -> None:
        """Treats these signals as requests to stop; a later one ends the process at once.

        Python handles signals in the main thread only; in other threads this does nothing.
        """
        signals = tuple(signals)
        _signals.take(signals, self)
        if (found := _signals.unmet(signals)) is not None:  # after the last step of a session
            self._wanted = True
            self._signal, self._signalled_at, self.held = found

    def signalled(self, number: int) -> bool:
        """Handles a signal; returns whether to end now, because another came long before."""
        self._wanted, self._signal, now = True, number, time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
        return now > self._signalled_at + _REPEAT_SECONDS

    def hold(self, error: BaseException) -> None:
        """Keeps the exception of another handler of the signal until the run is saved."""
        self.held = self.held or error

    def tell(self) -> None:
        """Requests a stop on this node."""
        self._wanted = True

    def stops_at(self, step: int, check: Callable[[], None]) -> bool:
        """Returns whether all nodes stop after `step`; pauses while they agree.

        Args:
            step: completed updates; larger at each call than at the previous one.
            check: called during the pause; raises if the agreement cannot succeed.
        """
        if len(self._living) == 1:
            stops = self._wanted or self._stop is not None
        else:
            with self._change:
                self._step = step
                while self._holds and self._stop is None:
                    self._change.wait(0.1)
                    check()
                stops = self._stop is not None and step >= self._stop
        self._met = self._met or stops
        return stops

    def look(self) -> None:
        """Sends this node's request to stop; called repeatedly by the detector."""
        if self._wanted and not self._asked:
            self._asked = True
            self._say(self._living[0], ASK, 0)

    def take(self, source: int, what: int, step: int) -> None:
        """Handles a message; called by the detector."""
        if self._stop is not None and what in (ASK, HOLD):  # the step is already known
            self._say(source, STOP, self._stop)
        elif what == ASK and not self._held:
            self._held = {-1: -1}  # if asked twice, the agreement begins only once
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
            if self._held:  # this node leads, and has another leader's step
                self._tell_all(STOP, step)

    def lost(self, node: int) -> None:
        """Handles a node that failed, with all it held; called by the detector."""
        self._living.remove(node)
        self._held.pop(node, None)
        if self._stop is not None:  # the failed node may have been about to send this step
            self._tell_all(STOP, self._stop)
        else:  # the failed node may have led, or made the request
            self._wanted, self._asked = self._wanted or self._holds, False
            self._stop_if_all_hold()

    def close(self) -> None:
        """Restores the previous handlers of the signals.

        A request that came after the last step is left to the next session of this process.
        """
        _signals.give_back(self)
        if self._signal is not None and self._signalled_at is not None:
            unmet = _signals.Unmet(self._signal, self._signalled_at, self.held)
            _signals.note_unmet(None if self._met else unmet)

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
