"""How a model is cut into stages: `partition` makes a `Plan`."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._types import PyTree
from ._cost import Cost, Costs, sum_costs
from ._cut import CutError, best_cuts, bytes_entering
from ._holding import Holding
from ._line import Line, line_of
from ._microbatch import Microbatches
from ._program import REMAT, Program, trace
from ._stage import Stage, stages_of

BALANCE = 1.1


@dataclasses.dataclass(frozen=True)
class Part:
    """A plan for micro-batches of one size."""

    program: Program
    line: Line
    stages: tuple[Stage, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
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

    loss_fn: Callable[..., Any]
    num_partitions: int
    chunks: int
    microbatches: Microbatches
    boundaries: tuple[int, ...]
    parts: dict[int, Part]
    holding: Holding
    aux: Any
    state: Any

    @property
    def num_microbatches(self) -> int:
        """M."""
        return len(self.microbatches.sizes)

    @property
    def num_stages(self) -> int:
        """K V."""
        return self.num_partitions * self.chunks

    @property
    def _largest(self) -> Part:
        return self.parts[max(self.parts)]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, for micro-batches of the larger size."""
        return self._largest.stages

    @property
    def costs(self) -> list[Cost]:
        """What each stage computes for one micro-batch."""
        costs = self._largest.line.costs
        return [sum_costs(costs[stage.begin : stage.end]) for stage in self.stages]

    @property
    def imbalance(self) -> float:
        """Cost of the largest stage, of the mean."""
        totals = [cost.total for cost in self.costs]
        return max(totals) / (sum(totals) / len(totals)) if sum(totals) else 1.0

    @property
    def bytes_in(self) -> list[float]:
        """What enters each stage for a micro-batch, and flows back from it."""
        line = self._largest.line
        return bytes_entering(line.values, self.boundaries, len(line.places))

    @property
    def parameters(self) -> list[int]:
        """Numbers that each stage is the first to use, and so holds."""
        count = [0] * self.num_stages
        for unit in self.holding.units:
            shape = self.holding.unit_shape(unit)
            size = 1
            for n in shape:
                size *= n
            count[unit.users[0]] += size
        return count

    def digest(self) -> str:
        """Says in a few letters whether two plans are the same."""
        said = [self.boundaries, self.num_partitions, self.chunks, self.microbatches.sizes]
        for part in self.parts.values():
            for stage in part.stages:
                said.append((len(stage.eqns), [eqn.primitive.name for eqn in stage.eqns]))
                said.append((sorted(stage.receives), stage.gives, stage.batch))
        return hashlib.sha256(repr(said).encode()).hexdigest()[:16]

    def label(self, place: int) -> str:
        """What stands at a place of the line, by the names that the model gives its parts."""
        line = self._largest.line
        eqn = line.program.eqns[line.places[place]]
        stack = str(eqn.source_info.name_stack)
        return f"{stack}/{eqn.primitive.name}" if stack else eqn.primitive.name

    def table(self) -> str:
        """One row a stage: what it holds, computes and receives."""
        rows = [("stage", "rank", "places", "begins with", "parameters", "share", "MB in", "GFLOP")]
        total = sum(cost.total for cost in self.costs) or 1.0
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
                    f"{(cost.flops + cost.backward_flops) / 1e9:.3f}",
                )
            )
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                text.ljust(width) if k == 3 else text.rjust(width)
                for k, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return (
            f"Plan(num_partitions={self.num_partitions}, chunks={self.chunks}, "
            f"num_microbatches={self.num_microbatches}, boundaries={self.boundaries})"
        )


def partition(
    loss_fn: Callable[..., Any],
    params: PyTree,
    batch: PyTree,
    *,
    num_partitions: int,
    num_microbatches: int | None = None,
    chunks: int = 1,
    state: PyTree = None,
    boundaries: Sequence[int | str] | None = None,
    imbalance: float = BALANCE,
) -> Plan:
    """Cuts a loss into stages that can run on different nodes.

    The loss is traced, not changed. Its equations, in the order in which the program makes them,
    are cut into ``num_partitions * chunks`` runs. Of all cuts whose largest run costs at most
    `imbalance` times the mean (or as little as can be), those are taken over which the fewest bytes
    flow. What a stage makes goes straight to each stage that uses it.

    Args:
        loss_fn: ``(params, batch) -> loss`` or ``(loss, aux)``, as `jax.value_and_grad` takes it;
            with a `state` ``(params, state, batch) -> (loss, (state, aux))``. The loss is a mean
            over the samples of the batch.
        params: tree of floating-point arrays, or of their shapes and dtypes.
        batch: a batch of one step, or its shapes and dtypes. Its arrays are cut along their leading
            axes into micro-batches.
        num_partitions: K, the ranks of a pipeline.
        num_microbatches: M; ``4 * num_partitions`` where None, at most as many as there are
            samples.
        chunks: V, stages a rank, for the schedule ``"interleaved"``.
        state: what the model carries from micro-batch to micro-batch without gradients, as the
            running means of batch normalization: tree of arrays, or of their shapes and dtypes.
        boundaries: where to cut: places as in `Plan.boundaries`, or (the beginning of) names as in
            `Plan.label`, before the first of which to cut; chosen where None.
        imbalance: see above; at least 1.

    Returns:
        The plan.

    Raises:
        ValueError: a number is out of its range; the batch cannot be cut into so many; the loss
            has side effects; there are not as many places to cut as stages need.
        TypeError: the loss is not a floating-point scalar, or a parameter not of such numbers.

    Reference:
        HyPar-Flow (arXiv 1911.05146), sections 4 and 5: partitions, replicas, one call for all.

    Example:
        >>> import jax.numpy as jnp
        >>> from jdaso import pipeline
        >>> def loss_fn(params, batch):
        ...     h = jnp.tanh(batch @ params["a"])
        ...     return jnp.mean((h @ params["b"]) ** 2)
        >>> params = {"a": jnp.ones((8, 8)), "b": jnp.ones((8, 8))}
        >>> plan = pipeline.partition(loss_fn, params, jnp.ones((4, 8)), num_partitions=2)
        >>> plan.parameters
        [64, 64]
    """
    if num_partitions < 1 or chunks < 1:
        raise ValueError(
            f"num_partitions and chunks must be at least 1, got {num_partitions} and {chunks}."
        )
    if not imbalance >= 1:
        raise ValueError(f"imbalance must be at least 1, got {imbalance}.")
    stages = num_partitions * chunks
    _check_params(params)
    if num_microbatches is None:
        num_microbatches = min(4 * num_partitions, Microbatches.of(batch, 1).samples)
    microbatches = Microbatches.of(batch, num_microbatches)
    costs = Costs()
    parts: dict[int, Part] = {}
    cuts: list[int] | None = None
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    aux = None
    for size in sorted(set(microbatches.sizes), reverse=True):
        struct = microbatches.struct(size)
        program, aux = _trace(loss_fn, params, structs, struct, costs, stages)
        line = line_of(program, costs.of_program(program), num_microbatches)
        if cuts is None:
            cuts = _choose(line, stages, boundaries, imbalance)
        elif [_name(line, p) for p in range(len(line.places))] != _names(parts):
            raise ValueError(
                "loss_fn computes different things for micro-batches of different sizes, "
                f"{microbatches.sizes[0]} and {size} samples. Choose num_microbatches so that it "
                f"divides the {microbatches.samples} samples of a batch."
            )
        parts[size] = Part(program, line, stages_of(line, cuts))
    assert cuts is not None
    largest = parts[max(parts)]
    holding = Holding.of(params, largest.stages, num_partitions)
    return Plan(
        loss_fn, num_partitions, chunks, microbatches, tuple(cuts), parts, holding, aux, structs
    )


def follow(plan: Plan, loss_fn: Callable[..., Any], params: PyTree, batch: PyTree) -> Plan:
    """A plan for another function of the same parameters, to evaluate a model.

    Each stage does what its parameters are needed for, so that these stay where they are; those
    that are needed elsewhere too are sent once for a batch.

    Args:
        plan: of the training.
        loss_fn: as `partition` takes it.
        params: as `partition` takes them.
        batch: as `partition` takes it, of any size.

    Raises:
        ValueError: as `partition`; or two stages' states are used in one place.
    """
    microbatches = Microbatches.of(batch, min(plan.num_microbatches, _samples(batch)))
    owner = plan.holding.stage_of_row
    parts, aux, cuts = {}, None, None
    for size in sorted(set(microbatches.sizes), reverse=True):
        program, aux = trace(loss_fn, params, plan.state, microbatches.struct(size), _never)
        line = line_of(program, [Cost()] * len(program.eqns), len(microbatches.sizes))
        if cuts is None:
            first = [0] * len(line.places)
            for piece, places in line.uses.items():
                for place in places:
                    first[place] = max(first[place], owner(piece.leaf, piece.begin))
            cuts = _follow_state(plan, line, np.maximum.accumulate(first).tolist())
        parts[size] = Part(program, line, stages_of(line, cuts))
    assert cuts is not None
    holding = plan.holding.lent_to(parts[max(parts)].stages)
    return dataclasses.replace(
        plan,
        loss_fn=loss_fn,
        microbatches=microbatches,
        boundaries=tuple(cuts),
        parts=parts,
        holding=holding,
        aux=aux,
    )


def _follow_state(plan: Plan, line: Line, stage_of: list[int]) -> list[int]:
    """Cuts, of the stage that each place's parameters ask for, such that states are at hand."""
    held = {k: stage.number for stage in plan.stages for k in stage.state}
    spans = [(held[k], *span) for k, span in enumerate(line.spans) if span[1]]
    for stage, begin, end in spans:
        stage_of[:end] = [min(s, stage) for s in stage_of[:end]]
        stage_of[begin:] = [max(s, stage) for s in stage_of[begin:]]
    cuts = [int(np.searchsorted(stage_of, s)) for s in range(1, plan.num_stages)]
    for stage, begin, end in spans:
        if any(sum(place >= cut for cut in cuts) != stage for place in (begin, end - 1)):
            raise ValueError(
                "The function uses states of the model in another order than the loss that was "
                "partitioned, so that no stage holds what it needs. Evaluate with the same model."
            )
    return cuts


def _never(eqn: Any) -> bool:
    del eqn
    return False


def _samples(batch: PyTree) -> int:
    return Microbatches.of(batch, 1).samples


def _check_params(params: PyTree) -> None:
    for path, leaf in jax.tree.leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"Parameters must be floating-point arrays, got {leaf.dtype} at "
                f"{jax.tree_util.keystr(path)}. Put what is not trained into the batch, or close "
                "over it."
            )


def _trace(
    loss_fn: Callable[..., Any],
    params: PyTree,
    state: PyTree,
    struct: PyTree,
    costs: Costs,
    stages: int,
) -> tuple[Program, Any]:
    """Traces; takes rematerialised calls apart that are too large a part of a stage."""
    program, aux = trace(loss_fn, params, state, struct, _never)
    found = costs.of_program(program)
    limit = sum(cost.total for cost in found) / (4 * stages)
    calls = [
        cost.total
        for eqn, cost in zip(program.eqns, found, strict=True)
        if eqn.primitive.name in REMAT
    ]
    if stages > 1 and max(calls, default=0.0) > limit:
        enter = lambda eqn: costs.of(eqn).total > limit  # noqa: E731
        program, aux = trace(loss_fn, params, state, struct, enter)
    return program, aux


def _choose(
    line: Line, stages: int, boundaries: Sequence[int | str] | None, imbalance: float
) -> list[int]:
    length = len(line.places)
    if boundaries is not None:
        return _by_hand(line, stages, boundaries)
    inside = _inside_spans(line)
    marks = [place for place in line.marks if 0 < place < length and place not in inside]
    free = [place for place in range(1, length) if place not in inside]
    allowed = marks if len(marks) >= stages - 1 else free
    forced = marks if len(marks) <= stages - 1 else []
    totals = [cost.total for cost in line.costs]
    try:
        return best_cuts(
            totals, line.values, stages, allowed=allowed, balance=imbalance, forced=forced
        )
    except CutError as error:
        raise ValueError(
            f"The loss cannot be cut into {stages} stages. {error} Use fewer partitions or chunks."
        ) from None


def _by_hand(line: Line, stages: int, boundaries: Sequence[int | str]) -> list[int]:
    length, cuts = len(line.places), []
    names = [_name(line, place) for place in range(length)]
    for boundary in boundaries:
        if isinstance(boundary, str):
            found = [place for place, name in enumerate(names) if name.startswith(boundary)]
            if not found:
                known = list(dict.fromkeys(name.rsplit("/", 1)[0] for name in names))
                raise ValueError(
                    f"Nothing in the loss is named {boundary!r}. Its parts are named "
                    f"{', '.join(known[:20])}{' ...' if len(known) > 20 else ''}."
                )
            boundary = found[0]
        cuts.append(int(boundary))
    if (
        len(cuts) != stages - 1
        or sorted(set(cuts)) != cuts
        or not all(0 < p < length for p in cuts)
    ):
        raise ValueError(
            f"boundaries must be {stages - 1} rising places within 1..{length - 1} for {stages} "
            f"stages, got {cuts}."
        )
    if wrong := sorted(set(cuts) & _inside_spans(line)):
        raise ValueError(
            f"boundaries {wrong} lie between the first and the last use of a leaf of the state, "
            "which one stage must hold. Cut before or after."
        )
    return cuts


def _inside_spans(line: Line) -> set[int]:
    """Places at which no cut may be."""
    return {place for begin, end in line.spans for place in range(begin + 1, end)}


def _name(line: Line, place: int) -> str:
    eqn = line.program.eqns[line.places[place]]
    stack = str(eqn.source_info.name_stack)
    return f"{stack}/{eqn.primitive.name}" if stack else eqn.primitive.name


def _names(parts: dict[int, Part]) -> list[str]:
    line = parts[max(parts)].line
    return [_name(line, place) for place in range(len(line.places))]
