"""Measured costs of equations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._run.compiled import CompiledStage, Compiler
from .cost import Cost
from .equations import is_key
from .line import Line
from .search import CutError, best_cuts
from .stage import stages_of

_SEGMENTS = 8
"""Parts per stage that are timed separately."""

_PASSES = 3


def measured_costs(line: Line, costs: Sequence[Cost], stages: int) -> list[Cost]:
    """Returns costs that add up, over a part of the program, to the time that the part takes here.

    The line is cut into parts, several per planned stage, and a forward and a backward pass of each
    is timed (the least of a few). Within a part the time is divided in proportion to the compiler's
    counts.

    Returns:
        Costs of all places, in nanoseconds, in `Cost.flops` and `Cost.backward_flops`.
    """
    length = len(line.places)
    allowed = [place for place in range(1, length) if place not in line.inside_spans]
    parts = min(_SEGMENTS * stages, len(allowed) + 1)
    totals = [cost.total for cost in costs]
    try:
        cuts = best_cuts(totals, line.values, parts, allowed=allowed, balance=1.5)
    except CutError:
        return list(costs)
    measured: list[Cost] = []
    compiler, known = Compiler(), {}
    for stage in stages_of(line, cuts):
        passes = compiler.passes(line, stage)
        if id(passes) not in known:
            known[id(passes)] = _seconds(CompiledStage(line, stage, [stage], compiler, "float32"))
        forward, backward = known[id(passes)]
        here = costs[stage.begin : stage.end]
        counted = sum(cost.forward for cost in here), sum(cost.backward for cost in here)
        for cost in here:
            ahead = cost.forward / counted[0] if counted[0] else 1 / len(here)
            back = cost.backward / counted[1] if counted[1] else 0.0
            measured.append(Cost(1e9 * forward * ahead, 1e9 * backward * back))
    return measured


def _seconds(compiled: CompiledStage) -> tuple[float, float]:
    """Returns the least time of a forward and of a backward pass."""
    args = compiled.arguments(example)
    forward = backward = np.inf
    for _ in range(_PASSES + 1):
        begin = time.perf_counter()
        made = jax.block_until_ready(compiled.forward(*args))
        forward = min(forward, time.perf_counter() - begin)
        if not compiled.has_backward:
            backward = 0.0
            continue
        cotangents = compiled.cotangents(example)
        sums = jax.block_until_ready([example(struct) for struct in compiled.piece_structs])
        begin = time.perf_counter()
        jax.block_until_ready(compiled.backward(made[2], cotangents, np.float32(1), sums))
        backward = min(backward, time.perf_counter() - begin)
    return float(forward), float(backward)


def example(struct: jax.ShapeDtypeStruct) -> Any:
    """Makes an array of a shape and dtype, to compile and to time with."""
    if is_key(struct):
        return jnp.broadcast_to(jax.random.key(0), struct.shape)
    return jnp.ones(struct.shape, struct.dtype)
