"""What one rank computes of a plan: its stages, compiled, and the tags of its messages."""

from __future__ import annotations

from typing import Any

from jax.extend.core import Var

from ._compiled import CompiledStage, Edge, edge_of
from ._plan import Plan


class Work:
    """The stages of one rank.

    Attributes:
        plan: of all stages.
        by_size: by the size of a micro-batch, its stages by their numbers.
        tags: a number for each message of a step; all nodes count them in the same order.

    Args:
        plan: see above.
        rank: of the pipeline.
        wire: of activations; see `Pipeline`.
        remat: see `CompiledStage`.
        train: the same.
    """

    def __init__(
        self, plan: Plan, rank: int, wire: str, *, remat: bool = False, train: bool = True
    ):
        self.plan, self.tags = plan, _tags(plan)
        self._rank, self._wire, self._remat, self._train = rank, wire, remat, train
        self.by_size = {size: self._compile(size) for size in set(plan.microbatches.sizes)}

    @property
    def stages(self) -> dict[int, CompiledStage]:
        """Those for micro-batches of the larger size."""
        return self.by_size[max(self.by_size)]

    @property
    def states_held(self) -> set[int]:
        """Which leaves of the model's state this rank holds."""
        return {k for compiled in self.stages.values() for k in compiled.stage.state}

    def _compile(self, size: int) -> dict[int, CompiledStage]:
        part, compiled = self.plan.parts[size], {}
        edges: dict[Var, Edge] = {
            var: edge_of(var, var in part.line.backward, self._wire)
            for stage in part.stages
            for made in stage.receives.values()
            for var in made
        }
        for stage in part.stages:
            if stage.number % self.plan.num_partitions == self._rank:
                received = [edges[var] for made in stage.receives.values() for var in made]
                sent = dict.fromkeys(var for made in stage.sends.values() for var in made)
                compiled[stage.number] = CompiledStage(
                    part.program,
                    stage,
                    received,
                    [edges[var] for var in sent],
                    remat=self._remat,
                    train=self._train,
                )
        return compiled


def _tags(plan: Plan) -> dict[Any, int]:
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
