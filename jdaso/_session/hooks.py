"""Calls that others ask a session for: at its end, at a checkpoint or a fault, at a save."""

from __future__ import annotations

from collections.abc import Callable

Closer = Callable[[bool], None]
"""Called with True if the program has ended with an error."""

Observer = Callable[[str, int | None, str], None]
"""Called with "checkpoint", "fault" or "stopped", the step if there is one, and a text."""

Settler = Callable[[float], None]
"""Called with the seconds that it may wait until its work in the background is done, and noted."""


class Hooks:
    """The calls of one session; all are made by the thread that notes or reaches something.

    A save notes a checkpoint in a thread of its own, once it is written.
    """

    def __init__(self) -> None:
        self._closers: list[Closer] = []
        self._observers: list[Observer] = []
        self._settlers: list[Settler] = []
        self._at_point: Callable[[str], None] = lambda point: None

    @property
    def closers(self) -> tuple[Closer, ...]:
        """The calls for the session's end, in the order in which they were asked for."""
        return tuple(self._closers)

    def on_close(self, closer: Closer) -> None:
        """Calls `closer` when the session closes."""
        self._closers.append(closer)

    def forget_close(self, closer: Closer) -> None:
        """Undoes `on_close`, if it is not undone yet."""
        if closer in self._closers:
            self._closers.remove(closer)

    def on_note(self, observer: Observer) -> None:
        """Calls `observer` for each checkpoint and fault, and where a run stops as asked to."""
        self._observers.append(observer)

    def forget_note(self, observer: Observer) -> None:
        """Undoes `on_note`."""
        self._observers.remove(observer)

    def note(self, kind: str, step: int | None, text: str = "") -> None:
        """Passes what happened to all observers of the run, before it returns."""
        for observer in list(self._observers):
            observer(kind, step, text)

    def on_settle(self, settler: Settler) -> None:
        """Calls `settler` before an observer leaves that wants to have noted all."""
        self._settlers.append(settler)

    def settle(self, limit_seconds: float) -> None:
        """Waits for what is done in the background, for `limit_seconds` at most each."""
        for settler in list(self._settlers):
            settler(limit_seconds)

    def on_point(self, fault: Callable[[str], None]) -> None:
        """Calls `fault`, in place of any earlier one, at each point of `reach`."""
        self._at_point = fault

    def reach(self, point: str) -> None:
        """Injects the faults of a point of the run that has no step: "save" or "restore"."""
        self._at_point(point)
