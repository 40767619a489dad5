"""A plan: a model cut into stages, with reports on its memory and idle time."""

from __future__ import annotations

import dataclasses

import optax

from .memory import Memory, memory_of
from .stages import Stages


@dataclasses.dataclass(frozen=True, repr=False)
class Plan(Stages):
    """A model cut into stages, made by `partition`; the same on all nodes.

    `jdaso.plots.draw_plan` draws it.

    Attributes:
        num_partitions: K, ranks of a pipeline.
        chunks: V, stages per rank.
        microbatches: the cut of a batch.
        boundaries: places between equations where stages meet; they may be edited by hand and given
            to `partition` again.
        parts: maps the size of a micro-batch to the computation of each stage.
        holding: the parameters that each rank holds.
        aux: structure of the loss's auxiliary output; None if it has none.
        state: the model's state, as shapes and dtypes; None if it has none.
    """

    def memory(
        self,
        schedule: str | None = None,
        optimizer: optax.GradientTransformation | None = None,
        *,
        remat: bool = False,
    ) -> tuple[Memory, ...]:
        """Estimates the memory that each rank needs, before anything is compiled.

        Args:
            schedule: if None, ``"1f1b"``, or ``"interleaved"`` with chunks.
            optimizer: if None, one with two states per parameter is assumed.
            remat: as for `Pipeline`.
        """
        return memory_of(self, self.schedule(schedule), optimizer, remat=remat)

    def table(self) -> str:
        """Returns a table with one row per stage: its parameters, work and traffic per micro-batch.

        A stage's memory is that of its rank (`memory`). The last line gives the share of a step
        during which ranks wait.
        """
        names = "stage rank places begins_with parameters share MB_in MB_out GFLOP rank's_GB"
        rows = [tuple(name.replace("_", " ") for name in names.split())]
        total = sum(cost.total for cost in self.costs) or 1.0
        out = self.bytes_out
        memory = [m.total for m in self.memory()]
        columns = zip(self.stages, self.costs, self.parameters, self.bytes_in, strict=True)
        for stage, cost, parameters, size in columns:
            rows.append(
                (
                    str(stage.number),
                    str(stage.number % self.num_partitions),
                    f"{stage.begin}-{stage.end}",
                    self.label(stage.begin)[-32:],
                    f"{parameters:,}",
                    f"{cost.total / total:.1%}",
                    f"{size / 1e6:.2f}",
                    f"{out[stage.number] / 1e6:.2f}",
                    f"{(cost.flops + cost.backward_flops) / 1e9:.3f}",
                    f"{memory[stage.number % self.num_partitions] / 1e9:.3f}",
                )
            )
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = [
            "  ".join(
                text.ljust(width) if k == 3 else text.rjust(width)
                for k, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        schedule = self.schedule()
        return "\n".join(
            [
                *lines,
                f"expected bubble: {self.bubble():.0%} of a step ({schedule.name}, "
                f"{self.num_microbatches} micro-batches; {1 - schedule.bound():.0%} with equal "
                "stages)",
            ]
        )

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return (
            f"Plan(num_partitions={self.num_partitions}, chunks={self.chunks}, "
            f"num_microbatches={self.num_microbatches}, boundaries={self.boundaries})"
        )
