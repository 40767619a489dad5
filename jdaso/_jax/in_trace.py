"""Calls to the host in the trace of a function: a name for each, and the result of the last one."""

from __future__ import annotations

import itertools
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from jax._src import core as _core  # no public name has the trace of the caller
from jax.core import Tracer

_calls: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Calls of `place_in_trace` in a trace, and traces within it that have some."""

_places: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The number of a trace within the trace around it."""

_last: WeakKeyDictionary[Any, ReferenceType[Tracer]] = WeakKeyDictionary()
"""The last argument of `note_last` in each trace; a strong reference would keep the trace."""


def in_trace() -> bool:
    """Returns whether the caller is being traced."""
    return not isinstance(_core.trace_ctx.trace, _core.EvalTrace)


def place_in_trace() -> str:
    """A name for this call that no other call in the same program has, the same on all nodes.

    Counts calls in the trace of a function; bodies of branches, loops and inner functions have
    traces of their own: ``"2"`` is the third call, ``"2.0"`` the first in the third body.
    """
    stack = [_core.trace_ctx.trace]  # from the innermost
    while (around := getattr(stack[-1], "parent_trace", None)) is not None:
        if isinstance(around, _core.EvalTrace):  # not within a program
            break
        stack.append(around)
    stack.reverse()
    for around, trace in itertools.pairwise(stack):
        if trace not in _places:
            _places[trace] = _next(around)
    numbers = [*(_places[trace] for trace in stack[1:]), _next(stack[-1])]
    return ".".join(map(str, numbers))


def _next(trace: Any) -> int:
    _calls[trace] = number = _calls.get(trace, -1) + 1
    return number


def note_last(x: Any) -> None:
    """Notes an integer that the last call so far in the caller's trace returned."""
    if isinstance(x, Tracer):
        _last[_core.trace_ctx.trace] = ref(x)
        _ = x + 0  # an operation that the trace keeps, and this number with it


def last_in_trace() -> Any:
    """Returns what `note_last` was given last in the caller's trace, or None."""
    found = _last.get(_core.trace_ctx.trace)
    return None if found is None else found()
