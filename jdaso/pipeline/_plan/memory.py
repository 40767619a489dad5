"""The memory that a rank of a pipeline needs, estimated before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from ..._launch.memory import memory_limit_bytes
from .._run.work import StageWork
from .._schedule import Schedule
from .equations import bytes_of, struct_of
from .holding import Holding
from .stages import Stages

_STATES = 2.0
"""Bytes of optimizer state per byte of parameters, if no optimizer is given (Adam's moments)."""


class Memory(NamedTuple):
    """Bytes of one rank, on all its devices together."""

    parameters: int  # held by the rank, or held by others and used by it
    gradients: int  # sums of gradients
    optimizer: int  # its state, and what an update allocates before it frees the old one
    activations: int  # kept by micro-batches in flight for their backward passes
    working: int  # for one pass while it is computed; a rough estimate

    @property
    def total(self) -> int:
        """The sum of all fields."""
        return sum(self)


def memory_of(
    plan: Stages, schedule: Schedule, optimizer: optax.GradientTransformation | None, *, remat: bool
) -> tuple[Memory, ...]:
    """Estimates the memory that each rank needs.

    Activations are what the derivative of each stage keeps, times the micro-batches that the
    schedule has in flight. The compiler's working memory is unknown: the estimate is four times the
    operands and results of the largest equation.
    """
    states = _states(optimizer, plan.holding)
    return tuple(
        _rank_memory(StageWork(plan, rank, "float32", remat=remat), schedule, rank, states)
        for rank in range(plan.num_partitions)
    )


def _rank_memory(work: StageWork, schedule: Schedule, rank: int, states: float) -> Memory:
    holding = work.plan.holding
    used = sum(_unit_bytes(holding, k) for k in holding.used_by(rank))
    own = sum(_unit_bytes(holding, k) for k in holding.owned_by(rank))
    sum_dtype = work.plan.microbatches.sum_dtype
    sums = sum(_unit_bytes(holding, k, sum_dtype) for k in holding.used_by(rank))
    activations = working = 0
    for number, under_way in zip(sorted(work.stages), schedule.in_flight(rank), strict=True):
        stage = work.stages[number]
        activations += under_way * (stage.residual_bytes + stage.received_bytes)
        for eqn in stage.stage.eqns:
            sizes = [bytes_of(struct_of(atom)) for atom in (*eqn.invars, *eqn.outvars)]
            working = max(working, 4 * sum(sizes))
    return Memory(used, sums, int(own * (states + 1)), activations, working)


def available_bytes(devices: Sequence[Any]) -> int:
    """Returns the memory of all devices together, if known; for CPUs the process's limit."""
    stats = [device.memory_stats() or {} for device in devices]
    if all("bytes_limit" in each for each in stats):
        return sum(int(each["bytes_limit"]) for each in stats)
    return memory_limit_bytes()


def _unit_bytes(
    holding: Holding, number: int, convert: Callable[[np.dtype], np.dtype] = np.dtype
) -> int:
    unit = holding.units[number]
    size = int(np.prod(holding.unit_shape(unit), dtype=np.int64))
    return size * convert(holding.dtypes[unit.leaf]).itemsize


def _states(optimizer: optax.GradientTransformation | None, holding: Holding) -> float:
    """Returns bytes of an optimizer's state per byte of parameters."""
    if optimizer is None:
        return _STATES
    params = holding.whole_structs()
    state = jax.eval_shape(optimizer.init, params)
    total = sum(bytes_of(leaf) for leaf in jax.tree.leaves(params))
    return sum(bytes_of(leaf) for leaf in jax.tree.leaves(state)) / max(total, 1)
