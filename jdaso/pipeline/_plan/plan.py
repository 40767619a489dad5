"""A plan: a model cut into stages, with reports of its memory and its waits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import optax

from .memory import Memory, memory_of
from .stages import Stages


@dataclasses.dataclass(frozen=True, repr=False)
class Plan(Stages):
    """A model cut into stages, made by `partition`; the same on all nodes.

    Attributes:
        num_partitions: K, ranks of a pipeline.
        chunks: V, stages of each rank.
        microbatches: how a batch is cut.
        boundaries: places between equations at which stages part, to be edited by hand and given
            to `partition` again.
        parts: by the size of a micro-batch, what each stage does.
        holding: which parameters each rank holds.
        aux: the tree of the loss's auxiliary output; None where there is none.
        state: of the model, as shapes and dtypes; None where there is none.
    """

    def memory(
        self,
        schedule: str | None = None,
        optimizer: optax.GradientTransformation | None = None,
        *,
        remat: bool = False,
    ) -> tuple[Memory, ...]:
        """An estimate of what each rank needs of memory, before anything is compiled.

        Args:
            schedule: ``"1f1b"`` where None, ``"interleaved"`` with chunks.
            optimizer: one with two states a parameter where None.
            remat: as `Pipeline` takes it.
        """
        return memory_of(self, self.schedule(schedule), optimizer, remat=remat)

    def table(self) -> str:
        """One row a stage: what it holds, computes, receives and sends, for a micro-batch.

        Its memory is its rank's (`memory`). The last line says how much of a step ranks wait.
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

    def draw(self, path: str | Path) -> None:
        """Draws what each stage computes, holds and sends; see `jdaso.plots.draw_plan`.

        Args:
            path: where the picture goes; its ending says which format (.png, .svg, .pdf).

        Raises:
            ImportError: matplotlib is missing.
            ValueError: matplotlib does not know the ending.
        """
        from ...plots import draw_plan

        total = sum(cost.total for cost in self.costs) or 1.0
        columns = zip(self.stages, self.costs, self.parameters, strict=True)
        bars = [
            (f"{stage.number} {self.label(stage.begin)[-24:]}", cost.total / total, parameters)
            for stage, cost, parameters in columns
        ]
        draw_plan(bars, self.traffic, path)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return (
            f"Plan(num_partitions={self.num_partitions}, chunks={self.chunks}, "
            f"num_microbatches={self.num_microbatches}, boundaries={self.boundaries})"
        )
