"""Records of a run's optimizers, kept in its session: for `finalize`, checkpoints and records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
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
        feeds: returns whether the wire needs error feedback.
        held: returns each fragment's numbers on the host; a collective call.
        placement: how the leaves lie on the node's devices; None if none is divided.
    """

    complete: Callable[..., Leaves]
    skips: bool
    feeds: Callable[[], bool]
    held: Callable[[], tuple[Held, ...]]
    placement: Placement | None = None


class Optimizers:
    """The optimizers of a session.

    Args:
        prefix: begins messages.

    Attributes:
        trials: results of trials of inner optimizers, for those that are made again in a trace.
    """

    def __init__(self, prefix: str):
        self.trials: dict[Any, Any] = {}
        self._placements: dict[Any, Placement | None] = {}
        self._facts: dict[int, Callable[[], Facts]] = {}
        self._measured: set[int] = set()
        self._completions: dict[tuple[int, tuple[Leaf, ...]], Completion] = {}
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._prefix, self._count, self._models, self._warned = prefix, 0, 0, False

    def number(self) -> int:
        """Returns the next optimizer's number; equal on nodes that make them in the same order."""
        self._count += 1
        return self._count

    def model(self) -> int:
        """Returns the number of the next state; equal on nodes that call `init` together."""
        self._models += 1
        return self._models

    def note_model(self, number: int) -> None:
        """Gives later states larger numbers than this one, which a restored state has."""
        self._models = max(self._models, number)

    def note_placement(self, shapes: Any, placement: Placement | None) -> None:
        """Keeps the placement of a tree of `init`, for optimizers made again in a trace."""
        self._placements[shapes] = placement

    def placement_of(self, shapes: Any) -> Placement | None:
        """Returns the placement that a tree of these shapes had in the last `init`."""
        return self._placements.get(shapes)

    @property
    def facts(self) -> Mapping[int, Facts]:
        """Facts of each initialised optimizer, by its number."""
        return MappingProxyType({number: facts() for number, facts in self._facts.items()})

    @property
    def measured(self) -> Collection[int]:
        """Numbers of the initialised optimizers whose wire is the fastest one (``"auto"``)."""
        return self._measured

    @property
    def completions(self) -> Mapping[tuple[int, tuple[Leaf, ...]], Completion]:
        """Completions, by the optimizer's number and the leaves that it exchanges."""
        return MappingProxyType(self._completions)

    def register(self, number: int, facts: Callable[[], Facts], *, measured: bool = False) -> None:
        """Keeps the facts of an optimizer that was initialised.

        Args:
            number: of the optimizer.
            facts: returns its settings.
            measured: whether its wire is the fastest one, which a restored run may change.
        """
        self._facts[number] = facts
        if measured:
            self._measured.add(number)

    def register_completion(
        self, number: int, leaves: tuple[Leaf, ...], completion: Completion
    ) -> None:
        """Keeps how the run of an optimizer is completed for these leaves."""
        self._completions[number, leaves] = completion

    def completions_of(self, number: int | None) -> list[tuple[tuple[Leaf, ...], Completion]]:
        """Returns the completions of one optimizer, or of all, with the leaves of each."""
        every = self._completions.items()
        return [(leaves, done) for (of, leaves), done in every if number in (None, of)]

    def program(self, key: Any, compile_it: Callable[[], Callable[..., Any]]) -> Any:
        """Returns the compiled mean of a key, made at its first use."""
        if key not in self._programs:
            self._programs[key] = compile_it()
        return self._programs[key]

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
