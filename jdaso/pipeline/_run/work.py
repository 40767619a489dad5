"""The stages of one rank, compiled, and the tags of its messages."""

from __future__ import annotations

from typing import Any

import jax

from .._plan.stage import stages_of
from .._plan.stages import Stages
from .compiled import CompiledStage, Compiler
from .segments import segment_cuts


class StageWork:
    """The stages of one rank.

    Attributes:
        plan: the plan of all stages.
        by_size: maps the size of a micro-batch to this rank's stages by number.
        tags: a number for each message of a step; all nodes count them in the same order.

    Args:
        plan: see above.
        rank: the rank in the pipeline.
        wire: format of activations; see `Pipeline`.
        remat: see `StagePasses`.
        train: see `StagePasses`.
    """

    def __init__(
        self, plan: Stages, rank: int, wire: str, *, remat: bool = False, train: bool = True
    ):
        self.plan, self.tags = plan, _tags(plan)
        self._rank, self._wire = rank, wire
        self._compiler = Compiler(remat=remat, train=train)
        self.by_size = {size: self._compile(size) for size in set(plan.microbatches.sizes)}

    @property
    def stages(self) -> dict[int, CompiledStage]:
        """This rank's stages, for micro-batches of the larger size."""
        return self.by_size[max(self.by_size)]

    def sum_structs(self, compiled: CompiledStage) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes and dtypes of a stage's sums of gradients."""
        sum_dtype = self.plan.microbatches.sum_dtype
        return [jax.ShapeDtypeStruct(x.shape, sum_dtype(x.dtype)) for x in compiled.piece_structs]

    @property
    def states_held(self) -> set[int]:
        """The leaves of the model's state that this rank holds."""
        return {k for compiled in self.stages.values() for k in compiled.stage.state}

    def _compile(self, size: int) -> dict[int, CompiledStage]:
        part = self.plan.parts[size]
        line = part.line
        own = [s for s in part.stages if s.number % self.plan.num_partitions == self._rank]
        inner = {s.number: segment_cuts(line, s.begin, s.end) for s in own}
        parts = {s.number: [s] for s in own}
        if cuts := sorted(cut for found in inner.values() for cut in found):
            finer = stages_of(line, sorted({*self.plan.boundaries, *cuts}))
            for s in own:
                if inner[s.number]:
                    parts[s.number] = [f for f in finer if s.begin <= f.begin and f.end <= s.end]
        return {
            s.number: CompiledStage(line, s, parts[s.number], self._compiler, self._wire)
            for s in own
        }


def _tags(plan: Stages) -> dict[Any, int]:
    keys: list[Any] = []
    for stage in plan.stages:
        for maker, variables in stage.receives.items():
            keys += [
                ("edge", back, maker, stage.number, k, m)
                for back in (False, True)
                for k in range(len(variables))
                for m in range(plan.num_microbatches)
            ]
    for k in range(len(plan.holding.units)):
        keys += [("lend", k), ("grad", k), ("unit", k)]
    program = plan.parts[max(plan.parts)].program
    keys += [("out", k) for k in range(len(program.outs))]
    keys += [("state", k) for k in range(len(program.state))]
    return {key: number for number, key in enumerate(keys)}
