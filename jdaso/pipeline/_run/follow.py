"""Cuts another function along a plan's stages, to evaluate a model where its parameters are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..._jax.types import PyTree
from .._plan.line import Line, line_of
from .._plan.microbatch import Microbatches
from .._plan.stage import stages_of
from .._plan.stages import SizedPlan, Stages, alike
from .._plan.trace import trace


def follow(plan: Stages, loss_fn: Callable[..., Any], params: PyTree, batch: PyTree) -> Stages:
    """Plans another function of the same parameters, to evaluate a model.

    Each stage does the work that needs its parameters, so that these stay where they are;
    parameters that other stages need too are sent once per batch.

    Args:
        plan: the training plan.
        loss_fn: as for `partition`.
        params: as for `partition`.
        batch: as for `partition`, of any size.

    Raises:
        ValueError: as for `partition`; or the states of two stages are used in one place.
    """
    samples = Microbatches.of(batch, 1).samples
    most = min(plan.num_microbatches, samples)
    found = _follow(plan, loss_fn, params, Microbatches.of(batch, most))
    if found is None:  # the two sizes of micro-batches are computed differently
        equal = max(n for n in range(1, most + 1) if samples % n == 0)
        found = _follow(plan, loss_fn, params, Microbatches.of(batch, equal))
    assert found is not None
    return found


def _follow(
    plan: Stages, loss_fn: Callable[..., Any], params: PyTree, microbatches: Microbatches
) -> Stages | None:
    """Plans the function for given micro-batches; None if two sizes are computed differently."""
    owner = plan.holding.stage_of_row
    parts, aux, cuts = {}, None, None
    for size in sorted(set(microbatches.sizes), reverse=True):
        program, aux = trace(loss_fn, params, plan.state, microbatches.struct(size))
        line = line_of(program, None, len(microbatches.sizes))
        if cuts is None:
            first = [0] * len(line.places)
            for piece, places in line.uses.items():
                for place in places:
                    first[place] = max(first[place], owner(piece.leaf, piece.begin))
            cuts = _follow_state(plan, line, np.maximum.accumulate(first).tolist())
        elif not alike(parts[max(parts)], line, len(jax.tree.leaves(plan.state))):
            return None
        parts[size] = SizedPlan(program, line, stages_of(line, cuts))
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


def _follow_state(plan: Stages, line: Line, stage_of: list[int]) -> list[int]:
    """Returns cuts that keep states local, near `stage_of`: the stages of places' parameters."""
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
