"""The measurement of training, the same for all libraries: compute alone, a check, the steps."""

from __future__ import annotations

from collections.abc import Callable
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
) -> dict[str, Any]:
    """Measures the steps of a method, and before them its compute: the inner optimizer's alone.

    Args:
        about: the cell.
        transport: of all nodes.
        alone: makes steps of nodes that never meet.
        make: makes the steps of the method, from the same first parameters.
        each: the fewest bytes that a node sends and receives in a step.
        sent: returns the bytes that this node has sent so far, by the library's own count.
    """
    steps = alone()
    own = _first(steps)
    compute = measure(transport, steps, 0, about.settings)["seconds"]
    del steps  # its memory is wanted
    steps = make()
    found = _first(steps)
    check(transport, own, found, about.wire, mean=about.method == "synchronous")
    return measure(transport, steps, each, about.settings, compute_seconds=compute, sent=sent)


def _first(steps: Steps) -> np.ndarray:
    """Compiles, and returns sums over the gradients of the first step."""
    steps()
    return sums_of(steps.gradients())
