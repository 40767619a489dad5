"""Records of a run's optimizers, kept in its session: for `finalize`, checkpoints and records."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from .._engines.versions import Versions
from .._jax.types import Leaves
from .._nodes.control import Facts
from .._payload.layout import Leaf
from .._payload.placement import Placement
from .._payload.spans import Span

log = logging.getLogger("jdaso")


class Held(NamedTuple):
    """Numbers of one fragment's late exchanges, which the host holds.

    Attributes:
        versions: the numbers.
        spans: the place that each leaf of their layout has among the parameters.
    """

    versions: Versions
    spans: tuple[Span, ...]


class Completion(NamedTuple):
    """Completes the run of one optimizer.

    Attributes:
        complete: merges exchanges in flight and the error feedback into float32 leaves.
        skips: whether numbers that are not finite are left out, instead of an error.
        feeds: whether the wire needs error feedback.
        anchored: whether a point common to all nodes is kept.
        held: returns each fragment's numbers on the host; all nodes call it together.
        placement: how the leaves lie on the node's devices; None if none is divided.
    """

    complete: Callable[..., Leaves]
    skips: bool
    feeds: bool
    anchored: bool
    held: Callable[[], tuple[Held, ...]]
    placement: Placement | None = None


class Optimizers:
    """The optimizers of a session.

    Attributes:
        facts: facts of each initialised optimizer, by its number.
        completions: by the optimizer's number and the leaves that it exchanges.
        programs: compiled means.

    Args:
        prefix: begins messages.
    """

    def __init__(self, prefix: str):
        self.facts: dict[int, Facts] = {}
        self.completions: dict[tuple[int, tuple[Leaf, ...]], Completion] = {}
        self.programs: dict[Any, Callable[..., Any]] = {}
        self._prefix, self._count, self._warned = prefix, 0, False

    def number(self) -> int:
        """Returns the next optimizer's number; equal on nodes that make them in the same order."""
        self._count += 1
        return self._count

    def warn_past_end(self, total_steps: int) -> None:
        """Warns once that the run has passed its end."""
        if not self._warned:
            self._warned = True
            log.warning(
                "%s The run has passed total_steps=%d and goes on blocking at every step. Give "
                "Phases the number of updates that you mean to make.",
                self._prefix,
                total_steps,
            )
