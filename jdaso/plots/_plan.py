"""Plots of pipelines: the stages of a plan, and the schedule of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..fabric import Fabric, play


class StageBar(NamedTuple):
    """One stage in a picture of a plan."""

    name: str  # shown under its bar
    share: float  # of the cost of all stages
    parameters: int  # the parameters that it is the first to use


@runtime_checkable
class Staged(Protocol):
    """A model cut into stages, such as `jdaso.pipeline.Plan`."""

    @property
    def stages(self) -> Sequence[Any]:
        """Each with its `number`, and the place `begin` of its first equation."""
        ...

    @property
    def costs(self) -> Sequence[Any]:
        """The `total` cost of each stage."""
        ...

    @property
    def parameters(self) -> Sequence[int]:
        """The parameters that each stage is the first to use."""
        ...

    @property
    def traffic(self) -> Sequence[tuple[int, int, float]]:
        """Bytes between stages; see `draw_stages`."""
        ...

    def label(self, place: int) -> str:
        """Names a place in the model."""
        ...


def draw_plan(plan: Staged, path: str | Path) -> None:
    """Draws the work, parameters and traffic of each stage of a plan; see `draw_stages`.

    Args:
        plan: made by `jdaso.pipeline.partition`.
        path: the file to write; its ending gives the format (.png, .svg, .pdf).

    Raises:
        ImportError: matplotlib is missing.
        ValueError: matplotlib does not support the ending.
    """
    total = sum(cost.total for cost in plan.costs) or 1.0
    columns = zip(plan.stages, plan.costs, plan.parameters, strict=True)
    bars = [
        StageBar(f"{stage.number} {plan.label(stage.begin)[-24:]}", cost.total / total, parameters)
        for stage, cost, parameters in columns
    ]
    draw_stages(bars, plan.traffic, path)


def draw_stages(
    stages: Sequence[tuple[str, float, int]],
    traffic: Sequence[tuple[int, int, float]],
    path: str | Path,
) -> None:
    """Draws the stages of a model: their work, their parameters, and the traffic between them.

    Two bars for each stage show its share of the cost and of the parameters, with a line at the
    even share. The bytes per micro-batch stand between neighbors; traffic that skips stages is an
    arrow above the bars.

    Args:
        stages: ``(name, share of the cost, parameters)`` of each, as `StageBar`.
        traffic: ``(from stage, to stage, bytes)`` of the forward pass of a micro-batch, as
            ``jdaso.pipeline.Plan.traffic``.
        path: the file to write; its ending gives the format (.png, .svg, .pdf).

    Raises:
        ImportError: matplotlib is missing.
        ValueError: there are no stages, a row of `traffic` names a missing stage, or matplotlib
            does not support the ending.
    """
    from matplotlib.figure import Figure

    bars = [StageBar(*stage) for stage in stages]
    if not bars:
        raise ValueError("There are no stages to draw.")
    for source, target, _ in traffic:
        if not 0 <= source < target < len(bars):
            raise ValueError(
                f"traffic goes from a stage to a later one of {len(bars)}, got {source} to "
                f"{target}."
            )
    total = sum(bar.parameters for bar in bars) or 1
    shares = [100 * bar.share for bar in bars]
    held = [100 * bar.parameters / total for bar in bars]
    top = max(*shares, *held, 1.0)
    wide = min(16.0, 2 + 1.2 * len(bars))
    figure = Figure(figsize=(max(5.0, wide), 4.2), layout="constrained")
    axes = figure.subplots()
    places = range(len(bars))
    axes.bar([p - 0.18 for p in places], shares, 0.34, color="C0", label="cost")
    axes.bar([p + 0.18 for p in places], held, 0.34, color="C1", label="parameters")
    axes.axhline(100 / len(bars), color="0.6", linewidth=0.8, linestyle=":", label="even")
    for place, (bar, height) in enumerate(zip(bars, held, strict=True)):
        axes.text(
            place + 0.18, height, _count(bar.parameters), ha="center", va="bottom", fontsize=7
        )
    levels = 0
    for source, target, size in sorted(traffic, key=lambda row: (row[1] - row[0], row)):
        if target == source + 1:
            axes.text(
                source + 0.5, 0.02 * top, f"{_bytes(size)}\n→", ha="center", va="bottom", fontsize=7
            )
            continue
        levels += 1
        height = top * (1.06 + 0.1 * levels)
        arrow = {"arrowstyle": "->", "color": f"C{2 + levels % 7}"}
        axes.annotate("", (target, height), (source, height), arrowprops=arrow)
        axes.text((source + target) / 2, height, _bytes(size), ha="center", va="bottom", fontsize=7)
    axes.set_ylim(0, top * (1.15 + 0.1 * levels))
    axes.set_xticks(list(places), [bar.name for bar in bars], fontsize=8)
    if len(bars) > 4:
        axes.tick_params(axis="x", rotation=30)
    axes.set_ylabel("share of the whole, %")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.set_title(
        "between the bars and above them: bytes of a micro-batch, forward", fontsize="medium"
    )
    figure.savefig(path, dpi=150)


def draw_schedule(
    order: Sequence[Sequence[tuple[bool, int, int]]],
    seconds: tuple[Sequence[float], Sequence[float]],
    path: str | Path,
    *,
    traffic: Sequence[tuple[int, int, float]] | None = None,
    fabric: Fabric | None = None,
    partitions_per_node: int = 1,
) -> None:
    """Draws a pipeline's step: one row per rank, time to the right, numbers for micro-batches.

    Forward passes are pale, backward passes dark; each micro-batch has one color. With several
    stages per rank, later ones have a thicker edge. White is the bubble.

    Args:
        order: of each rank, as ``jdaso.pipeline.make_schedule(...).order``.
        seconds: of the forward passes of each stage, and of the backward passes.
        path: the file to write; its ending gives the format (.png, .svg, .pdf).
        traffic: see `jdaso.fabric.play`.
        fabric: its links carry messages; if None, messages take no time.
        partitions_per_node: ranks that share a node.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: the order deadlocks, or matplotlib does not support the ending.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    forward, backward = seconds
    played = play(
        order, forward, backward, traffic, fabric=fabric, partitions_per_node=partitions_per_node
    )
    if not any(played):
        raise ValueError("There are no actions to draw.")
    ranks = len(played)
    end = max(action.end_seconds for actions in played for action in actions)
    colors = colormaps["tab20"]  # pairs of a dark and a pale color
    least = 0.008 * end  # narrower bars have no space for a number
    figure = Figure(figsize=(10, 0.9 + 0.45 * ranks), layout="constrained")
    axes = figure.subplots()
    for rank, actions in enumerate(played):
        own = sorted({action.stage for action in actions})
        for action in actions:
            long = action.end_seconds - action.begin_seconds
            axes.broken_barh(
                [(action.begin_seconds, long)],
                (rank - 0.42, 0.84),
                facecolor=colors(2 * (action.microbatch % 10) + (not action.backward)),
                edgecolor="black",
                linewidth=0.3 + 0.7 * own.index(action.stage),
                gid=f"{'backward' if action.backward else 'forward'}-{action.stage}-"
                f"{action.microbatch}",
            )
            if long >= least:
                axes.text(
                    action.begin_seconds + long / 2,
                    rank,
                    str(action.microbatch),
                    ha="center",
                    va="center",
                    color="white" if action.backward else "black",
                    fontsize=7,
                    clip_on=True,
                )
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.set_xlim(0, end)
    axes.invert_yaxis()
    axes.set_xlabel("seconds; numbers are micro-batches, pale forward, dark backward")
    figure.savefig(path, dpi=150)


def _count(number: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def _bytes(size: float) -> str:
    return f"{size / 1e6:.3g} MB" if size >= 1e5 else f"{size / 1e3:.3g} kB"
