"""Signals that ask a run to stop, handled alongside other handlers.

One handler per signal serves all sessions of the process, opened and closed in any order. The
previous handler is called each time too, and restored with the last session: a Python function, or
a handler in C (`faulthandler.register`). A forked process is not part of the run: its signals are
handled as if jdaso were not there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from .reports import say_saves

_ACTION_BYTES = 1024
"""Bytes: more than any platform's ``struct sigaction``; the handler's address comes first."""


@runtime_checkable
class Taker(Protocol):
    """An object that is called when a signal arrives."""

    def signalled(self, number: int) -> bool:
        """Handles a signal; returns whether it is one too many and the process must end now."""
        ...

    def hold(self, error: BaseException) -> None:
        """Keeps an exception of another handler, to be raised once the run is saved."""
        ...


class Unmet(NamedTuple):
    """A signal that asked a run to stop after the last step of its session.

    Attributes:
        number: the signal.
        at: when it came, by `time.monotonic`.
        held: the exception that another handler of the signal raised, if any.
    """

    number: int
    at: float
    held: BaseException | None


_LIBRARY: Any = None  # the C library, to read and restore handlers that Python does not see
with contextlib.suppress(OSError, TypeError):
    _LIBRARY = ctypes.CDLL(None)

_takers: dict[int, list[Taker]] = {}
_handlers: dict[int, _Handler] = {}
_of_thread = threading.local()
_unmet: Unmet | None = None


def check(numbers: Any) -> tuple[int, ...]:
    """Returns these signals; raises `ValueError` for any that a program cannot handle."""
    several = isinstance(numbers, Iterable) and not isinstance(numbers, str)
    given: tuple[Any, ...] = tuple(numbers) if several else (numbers,)
    for number in given:
        if number not in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            raise ValueError(
                f"stop_signals must be signals that a program can handle, got {number!r}. Use the "
                "module signal: (signal.SIGTERM, signal.SIGUSR1), or () for none."
            )
    return given


def take(numbers: Iterable[int], taker: Taker) -> None:
    """Calls `taker` for each of these signals until `give_back`.

    Python handles signals in its main thread only; in another thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in numbers:
        takers = _takers.setdefault(number, [])
        if taker not in takers:
            takers.append(taker)
        handler = _handlers.get(number)
        if handler is None or not handler.on_top():  # another handler may have replaced ours
            _handlers[number] = _Handler(number)
    say_saves(_taken())


def give_back(taker: Taker) -> None:
    """Removes `taker`; signals left without a taker go back to their previous handlers."""
    before = _taken()
    for number, takers in _takers.items():
        if taker in takers:
            takers.remove(taker)
        handler = _handlers.get(number)
        main = threading.current_thread() is threading.main_thread()
        if not takers and handler is not None and main and handler.on_top():
            handler.put_back()
            del _handlers[number]
    if _taken() != before:
        say_saves(_taken())


def note_unmet(request: Unmet | None) -> None:
    """Keeps a signal that came too late for its taker, for the next one; None once it is met."""
    global _unmet
    _unmet = request


def unmet(numbers: Iterable[int]) -> Unmet | None:
    """Returns the signal that no taker has met yet, if it is one of these and this thread's."""
    main = threading.current_thread() is threading.main_thread()
    return _unmet if main and _unmet is not None and _unmet.number in numbers else None


def _taken() -> list[int]:
    return [int(number) for number, takers in _takers.items() if takers]


class _Handler:
    """Our handler of one signal, and the handler that it replaced."""

    def __init__(self, number: int):
        self._number = number
        before = _action(number)
        self._previous = signal.signal(number, self)
        self._own = _action(number)
        ordinary = {signal.SIG_DFL.value, signal.SIG_IGN.value, _address(self._own)}
        self._in_c = None if _address(before) in ordinary else before

    def on_top(self) -> bool:
        """Returns whether the signal reaches this handler first."""
        same = signal.getsignal(self._number) is self
        return same and _address(_action(self._number)) == _address(self._own)

    def put_back(self) -> None:
        """Restores the previous handler."""
        previous = signal.SIG_DFL if self._previous is None else self._previous
        signal.signal(self._number, previous)
        if self._in_c is not None:
            _set_action(self._number, self._in_c)

    def __call__(self, number: int, frame: Any) -> None:
        takers = list(_takers.get(number, ()))
        if not takers:
            self._pass_on(number, frame)
            return
        end = any([taker.signalled(number) for taker in takers])
        try:
            self._call_previous(number, frame)
        except BaseException as error:  # SystemExit, for example: the run is saved first
            for taker in takers:
                taker.hold(error)
        if end:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _goes_to_c(self) -> bool:
        """Returns whether the handler in C still has to be called.

        Not so if that handler has since replaced this one, and calls this one.
        """
        return self._in_c is not None and _address(_action(self._number)) != _address(self._in_c)

    def _call_previous(self, number: int, frame: Any) -> None:
        if self._goes_to_c():
            with self._away():
                signal.raise_signal(number)
        elif callable(self._previous) and self._previous is not signal.default_int_handler:
            self._previous(number, frame)

    def _pass_on(self, number: int, frame: Any) -> None:
        """Passes on a signal without takers, if another handler still calls this one."""
        if not self._goes_to_c() and callable(self._previous):
            self._previous(number, frame)
        elif self._goes_to_c() or self._previous != signal.SIG_IGN:
            with self._away():
                signal.raise_signal(number)

    @contextlib.contextmanager
    def _away(self) -> Iterator[None]:
        """Restores the previous handler meanwhile, whatever other handlers that one calls."""
        above, above_in_c = signal.getsignal(self._number), _action(self._number)
        wakes = signal.set_wakeup_fd(-1)  # asyncio's, which has already read this signal
        self.put_back()
        try:
            yield
            for _ in range(2):  # gives Python time to run a chained handler written in Python
                pass
        finally:
            signal.signal(self._number, above)
            if above_in_c is not None:
                _set_action(self._number, above_in_c)
            if wakes != -1:
                with contextlib.suppress(ValueError, OSError):  # closed by the handler
                    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)


def _action(number: int) -> Any:
    """The action in C for a signal; None if it cannot be read."""
    found = ctypes.create_string_buffer(_ACTION_BYTES)
    failed = _LIBRARY is None or _LIBRARY.sigaction(number, None, found)
    return None if failed else found


def _set_action(number: int, action: Any) -> None:
    if _LIBRARY is not None:
        _LIBRARY.sigaction(number, action, None)


def _address(action: Any) -> int | None:
    """The handler's address; None if unknown."""
    return None if action is None else ctypes.c_size_t.from_buffer(action).value


def _before_fork() -> None:
    """Blocks signals until each process has its own handlers; one in between would be lost."""
    _of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handlers) if _handlers else None


def _in_parent() -> None:
    mask, _of_thread.mask = getattr(_of_thread, "mask", None), None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    """Leaves the signals to the parent: a child that handled them could not be terminated."""
    _takers.clear()
    for handler in _handlers.values():
        if handler.on_top():
            handler.put_back()
    _handlers.clear()
    note_unmet(None)
    _in_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
