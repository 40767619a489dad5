"""What a rank of a pipeline needs of memory, estimated before anything is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from ..._launch.memory import memory_limit_bytes
from .._run.work import Work
from .._schedule import Schedule
from .equations import bytes_of, struct_of
from .holding import Holding
from .stages import Stages

_STATES = 2.0
"""Of the parameters' bytes: what an optimizer keeps, where it is not known (Adam's moments)."""


class Memory(NamedTuple):
    """Bytes of one rank, on all its devices together."""

    parameters: int  # those it holds, and those of other ranks that it uses
    gradients: int  # their sums
    optimizer: int  # its states, and what an update makes before it gives up the old ones
    activations: int  # that micro-batches under way keep for their backward passes
    working: int  # of one pass while it is computed; a rough estimate

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def memory_of(
    plan: Stages,
    schedule: Schedule,
    optimizer: optax.GradientTransformation | None,
    *,
    remat: bool,
) -> tuple[Memory, ...]:
    """Estimates what each rank needs.

    Activations are what the derivative of each stage keeps, counted for as many micro-batches as
    the schedule has under way. What the compiler needs besides while it computes is not known: the
    largest operands and results of one equation are taken, four times.
    """
    states = _states(optimizer, plan.holding)
    return tuple(
        _rank_memory(Work(plan, rank, "float32", remat=remat), schedule, rank, states)
        for rank in range(plan.num_partitions)
    )


def _rank_memory(work: Work, schedule: Schedule, rank: int, states: float) -> Memory:
    holding = work.plan.holding
    used = sum(_unit_bytes(holding, k) for k in holding.used_by(rank))
    own = sum(_unit_bytes(holding, k) for k in holding.owned_by(rank))
    activations = working = 0
    for number, under_way in zip(sorted(work.stages), schedule.in_flight(rank), strict=True):
        stage = work.stages[number]
        activations += under_way * (stage.residual_bytes + stage.received_bytes)
        for eqn in stage.stage.eqns:
            sizes = [bytes_of(struct_of(atom)) for atom in (*eqn.invars, *eqn.outvars)]
            working = max(working, 4 * sum(sizes))
    return Memory(used, used, int(own * (states + 1)), activations, working)


def available_bytes(devices: Sequence[Any]) -> int:
    """What the devices can hold, all together, as far as is known: of CPUs the process's limit."""
    stats = [device.memory_stats() or {} for device in devices]
    if all("bytes_limit" in each for each in stats):
        return sum(int(each["bytes_limit"]) for each in stats)
    return memory_limit_bytes()


def _unit_bytes(holding: Holding, number: int) -> int:
    unit = holding.units[number]
    size = int(np.prod(holding.unit_shape(unit), dtype=np.int64))
    return size * holding.dtypes[unit.leaf].itemsize


def _states(optimizer: optax.GradientTransformation | None, holding: Holding) -> float:
    """Bytes of an optimizer's state, of its parameters' bytes."""
    if optimizer is None:
        return _STATES
    params = holding.whole_structs()
    state = jax.eval_shape(optimizer.init, params)
    total = sum(bytes_of(leaf) for leaf in jax.tree.leaves(params))
    return sum(bytes_of(leaf) for leaf in jax.tree.leaves(state)) / max(total, 1)
