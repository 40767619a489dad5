"""Calls that others ask a session for: at its end, at a checkpoint or a fault, at a save."""

from __future__ import annotations

from collections.abc import Callable

Closer = Callable[[bool], None]
"""Called with True if the program has ended with an error."""

Observer = Callable[[str, int | None, str], None]
"""Called with "checkpoint" or "fault", the step if there is one, and a text."""


class Hooks:
    """The calls of one session; all are made by the thread that notes or reaches something."""

    def __init__(self) -> None:
        self._closers: list[Closer] = []
        self._observers: list[Observer] = []
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
        """Calls `observer` for each checkpoint and fault."""
        self._observers.append(observer)

    def forget_note(self, observer: Observer) -> None:
        """Undoes `on_note`."""
        self._observers.remove(observer)

    def note(self, kind: str, step: int | None, text: str = "") -> None:
        """Passes a "checkpoint" or a "fault" to all observers of the run, before it returns."""
        for observer in list(self._observers):
            observer(kind, step, text)

    def on_point(self, fault: Callable[[str], None]) -> None:
        """Calls `fault`, in place of any earlier one, at each point of `reach`."""
        self._at_point = fault

    def reach(self, point: str) -> None:
        """Injects the faults of a point of the run that has no step: "save" or "restore"."""
        self._at_point(point)
