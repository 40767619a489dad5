"""A model cut into stages, as data: the parameters, work and traffic of each rank."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

from .._schedule import Schedule, check, make_schedule
from .cost import Cost, sum_costs
from .equations import bytes_of
from .holding import Holding
from .line import Line
from .microbatch import Microbatches
from .program import Program
from .search import bytes_entering
from .stage import Stage


@dataclasses.dataclass(frozen=True)
class SizedPlan:
    """A plan for micro-batches of one size."""

    program: Program
    line: Line
    stages: tuple[Stage, ...]


def alike(part: SizedPlan, line: Line, states: int) -> bool:
    """Returns whether micro-batches of two sizes are computed alike, apart from their size.

    Args:
        part: the plan for one size.
        line: the line for the other.
        states: number of leaves of the model's state.
    """
    names = [[x.label(place) for place in range(len(x.places))] for x in (part.line, line)]
    aux = [[v.aval.shape for v in x.program.outs[1 + states :]] for x in (part.line, line)]
    return names[0] == names[1] and aux[0] == aux[1]


@dataclasses.dataclass(frozen=True)
class Stages:
    """A model cut into stages; the same on all nodes.

    `Plan` describes the attributes.
    """

    loss_fn: Callable[..., Any]
    num_partitions: int
    chunks: int
    microbatches: Microbatches
    boundaries: tuple[int, ...]
    parts: dict[int, SizedPlan]
    holding: Holding
    aux: Any
    state: Any

    @property
    def num_microbatches(self) -> int:
        """The number of micro-batches, M."""
        return len(self.microbatches.sizes)

    @property
    def num_stages(self) -> int:
        """The number of stages, K V."""
        return self.num_partitions * self.chunks

    @property
    def _largest(self) -> SizedPlan:
        return self.parts[max(self.parts)]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, for micro-batches of the larger size."""
        return self._largest.stages

    @property
    def costs(self) -> list[Cost]:
        """The cost of each stage for one micro-batch."""
        costs = self._largest.line.costs
        return [sum_costs(costs[stage.begin : stage.end]) for stage in self.stages]

    @property
    def imbalance(self) -> float:
        """The cost of the largest stage, divided by the mean."""
        totals = [cost.total for cost in self.costs]
        return max(totals) / (sum(totals) / len(totals)) if sum(totals) else 1.0

    @property
    def bytes_in(self) -> list[float]:
        """The bytes that enter each stage for a micro-batch, plus the gradients that flow back."""
        line = self._largest.line
        return bytes_entering(line.values, self.boundaries, len(line.places))

    @property
    def bytes_out(self) -> list[float]:
        """The bytes that leave each stage for a micro-batch, plus the gradients that come back."""
        backward, out = self._largest.line.backward, []
        for stage in self.stages:
            sent = [var for made in stage.sends.values() for var in made]
            out.append(float(sum(bytes_of(v) * (2 if v in backward else 1) for v in sent)))
        return out

    @property
    def traffic(self) -> list[tuple[int, int, float]]:
        """``(from stage, to stage, bytes)`` for the forward pass of a micro-batch, with skips.

        This is the form that `jdaso.fabric.Hybrid` takes.
        """
        return [
            (maker, stage.number, float(sum(bytes_of(var) for var in variables)))
            for stage in self.stages
            for maker, variables in sorted(stage.receives.items())
        ]

    @property
    def parameters(self) -> list[int]:
        """The parameters that each stage is the first to use, and so holds; a count of numbers."""
        count = [0] * self.num_stages
        for unit in self.holding.units:
            shape = self.holding.unit_shape(unit)
            size = 1
            for n in shape:
                size *= n
            count[unit.users[0]] += size
        return count

    def schedule(self, name: str | None = None) -> Schedule:
        """Makes the schedule of that name for this plan; the default one if None."""
        name = name or ("1f1b" if self.chunks == 1 else "interleaved")
        return make_schedule(name, self.num_partitions, self.num_microbatches, self.chunks)

    def bubble(self, schedule: str | None = None) -> float:
        """Returns the share of a step during which a rank waits, if messages take no time."""
        costs = self.costs
        play = self.schedule(schedule)
        busy = sum(cost.total for cost in costs) * self.num_microbatches
        seconds = check(
            play,
            lambda s: tuple(self.stages[s].receives),
            lambda a: _pass(costs[a.stage], a.backward),
        )
        return 1 - busy / (self.num_partitions * seconds) if seconds else 0.0

    def digest(self) -> str:
        """Returns a short hash that is equal for equal plans."""
        said = [self.boundaries, self.num_partitions, self.chunks, self.microbatches.sizes]
        for part in self.parts.values():
            made = [var for eqn in part.program.eqns for var in eqn.outvars]
            number = {var: k for k, var in enumerate(made)}
            for stage in part.stages:
                said.append((len(stage.eqns), [eqn.primitive.name for eqn in stage.eqns]))
                said.append((sorted(stage.receives), stage.gives, stage.batch))
                arrays = (*stage.pieces, *(v for got in stage.receives.values() for v in got))
                said.append([(str(var.aval), number.get(var)) for var in arrays])
        return hashlib.sha256(repr(said).encode()).hexdigest()[:16]

    def label(self, place: int) -> str:
        """Returns the name of a place of the line, by the names that the model gives its parts."""
        return self._largest.line.label(place)


def _pass(cost: Cost, backward: bool) -> float:
    return cost.backward if backward else cost.forward
