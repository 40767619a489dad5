"""The measurement of training, the same for all libraries: compute alone, a check, the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ._averages import check, sums_of
from ._given import Given
from ._timing import measure


@runtime_checkable
class Steps(Protocol):
    """One method's steps, each of which goes on where the last one ended."""

    def __call__(self) -> object:
        """Takes a step."""

    def gradients(self) -> list[Any]:
        """Returns the gradients that the optimizer was given, after the first step."""
        ...


def train(
    about: Given,
    transport: Any,
    alone: Callable[[], Steps],
    make: Callable[[], Steps],
    each: int,
    sent: Callable[[], int] = lambda: 0,
    communicated: Callable[[], float] | None = None,
) -> dict[str, Any]:
    """Measures the steps of a method, and before them its compute: the inner optimizer's alone.

    An iteration is a cycle of ``sync_every`` steps, and its time is that of an average step: of
    daso's steps one per cycle waits, if any does, and a median of steps would not show that.

    Args:
        about: the cell.
        transport: of all nodes.
        alone: makes steps of nodes that never meet.
        make: makes the steps of the method, from the same first parameters.
        each: the fewest bytes that a node sends and receives in a step.
        sent: returns the bytes that this node has sent so far, by the library's own count.
        communicated: returns the seconds of this node's communication so far.
    """
    steps = alone()
    own = _first(steps)
    cycle = about.settings["sync_every"]
    compute = measure(transport, _Cycle(steps, cycle), 0, about.settings, parts=cycle)["seconds"]
    del steps  # frees their memory: no cycle holds them
    steps = make()
    found = _first(steps)
    check(transport, own, found, about.wire, mean=about.method == "synchronous")
    return measure(
        transport,
        _Cycle(steps, cycle),
        cycle * each,
        about.settings,
        parts=cycle,
        compute_seconds=compute,
        sent=sent,
        communicated=communicated,
    )


@dataclass(frozen=True)
class _Cycle:
    """Takes `count` steps, one after another."""

    step: Steps
    count: int

    def __call__(self) -> None:
        for _ in range(self.count):
            self.step()


def _first(steps: Steps) -> np.ndarray:
    """Compiles, and returns sums over the gradients of the first step."""
    steps()
    return sums_of(steps.gradients())
