"""Cuts a loss into stages that can run on different nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..._jax.types import PyTree
from ..._session import Session
from .cost import Cost, Costs
from .equations import REMAT
from .holding import Holding
from .line import Line, line_of
from .measured import measured_costs
from .memory import available_bytes
from .microbatch import Microbatches
from .plan import Plan
from .program import Program
from .search import CutError, best_cuts
from .stage import stages_of
from .stages import SizedPlan, alike
from .state import state_structs
from .trace import trace

_IMBALANCE = 1.1

_MOST_PARTITIONS = 64
"""The most partitions that ``num_partitions="auto"`` tries if no session is given."""


def partition(
    loss_fn: Callable[..., Any],
    params: PyTree,
    batch: PyTree,
    *,
    num_partitions: int | str,
    num_microbatches: int | None = None,
    chunks: int = 1,
    state: PyTree = None,
    boundaries: Sequence[int | str] | None = None,
    imbalance: float = _IMBALANCE,
    balance: str = "counted",
    session: Session | None = None,
    memory_bytes: float | None = None,
    optimizer: optax.GradientTransformation | None = None,
    schedule: str | None = None,
    remat: bool = False,
) -> Plan:
    """Cuts a loss into stages that can run on different nodes.

    The loss is traced, not changed. Its equations, in program order, are cut into
    ``num_partitions * chunks`` runs. Among all cuts whose largest run costs at most `imbalance`
    times the mean (or the least possible), those with the fewest bytes across them are taken. The
    results of a stage go straight to each stage that uses them.

    Args:
        loss_fn: ``(params, batch) -> loss`` or ``(loss, aux)``, as for `jax.value_and_grad`; with a
            `state`, ``(params, state, batch) -> (loss, (state, aux))``. The loss is a mean over the
            samples of the batch.
        params: tree of floating-point arrays, or of their shapes and dtypes.
        batch: a batch of one step, or its shapes and dtypes. Its arrays are cut along their leading
            axes into micro-batches.
        num_partitions: K, the ranks of a pipeline; or ``"auto"``, the fewest with which each rank's
            share fits into memory.
        num_microbatches: M; if None, ``4 * num_partitions``, but at most the number of samples.
        chunks: V, stages per rank, for the schedule ``"interleaved"``.
        state: values that the model carries from micro-batch to micro-batch without gradients, such
            as the running means of batch normalization: tree of arrays, or of their shapes and
            dtypes.
        boundaries: places to cut at: numbers as in `Plan.boundaries`, or names (or the beginning of
            names) as in `Plan.label`, to cut before the first such place. None chooses them.
        imbalance: the limit described above; at least 1.
        balance: ``"counted"`` balances operations and bytes as the compiler counts them;
            ``"measured"`` balances seconds on this machine; with several nodes give the `session`.
        session: the nodes: all of them take the boundaries that node 0 found, and ``"auto"`` tries
            divisors of their number.
        memory_bytes: memory of a rank, for ``"auto"``; if None, that of its devices.
        optimizer: used to estimate memory; if None, two states per parameter are assumed.
        schedule: used to estimate memory; if None, ``"1f1b"``, or ``"interleaved"`` with chunks.
        remat: used to estimate memory.

    Returns:
        The plan.

    Raises:
        ValueError: a number is out of range; the batch cannot be cut into that many micro-batches;
            the loss has side effects, or too few places to cut at.
        TypeError: the loss is not a floating-point scalar, or a parameter is not floating-point.

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
    options: dict[str, Any] = {
        "num_microbatches": num_microbatches,
        "chunks": chunks,
        "state": state,
        "boundaries": boundaries,
        "imbalance": imbalance,
        "balance": balance,
        "session": session,
    }
    if isinstance(num_partitions, int | np.integer):
        return _partition(loss_fn, params, batch, num_partitions=int(num_partitions), **options)
    if num_partitions != "auto":
        raise ValueError(f'num_partitions must be a number or "auto", got {num_partitions!r}.')
    limit = available_bytes(jax.local_devices()) if memory_bytes is None else memory_bytes
    if session is not None:
        limit = session.control.allgather("compare memory", np.asarray([limit], np.float64)).min()
    nodes = _MOST_PARTITIONS if session is None else session.num_nodes
    plan = need = None
    for number in range(1, nodes + 1):
        if session is not None and nodes % number:
            continue
        try:
            plan = _partition(loss_fn, params, batch, num_partitions=number, **options)
        except ValueError:
            if plan is None:
                raise
            break
        need = max(m.total for m in plan.memory(schedule, optimizer, remat=remat))
        if need <= limit:
            return plan
    assert plan is not None and need is not None
    raise ValueError(
        f"With num_partitions={plan.num_partitions} the largest stage still needs about "
        f"{need / 1e9:.2f} GB, and a rank has {limit / 1e9:.2f} GB. Use more nodes, smaller "
        "micro-batches (num_microbatches), or remat=True."
    )


def _partition(
    loss_fn: Callable[..., Any],
    params: PyTree,
    batch: PyTree,
    *,
    num_partitions: int,
    num_microbatches: int | None,
    chunks: int,
    state: PyTree,
    boundaries: Sequence[int | str] | None,
    imbalance: float,
    balance: str,
    session: Session | None,
) -> Plan:
    if num_partitions < 1 or chunks < 1:
        raise ValueError(
            f"num_partitions and chunks must be at least 1, got {num_partitions} and {chunks}."
        )
    if balance not in ("counted", "measured"):
        raise ValueError(f'balance must be "counted" or "measured", got {balance!r}.')
    if not imbalance >= 1:
        raise ValueError(f"imbalance must be at least 1, got {imbalance}.")
    stages = num_partitions * chunks
    _check_params(params)
    if num_microbatches is None:
        num_microbatches = min(4 * num_partitions, Microbatches.of(batch, 1).samples)
    microbatches = Microbatches.of(batch, num_microbatches)
    costs = Costs()
    parts: dict[int, SizedPlan] = {}
    cuts: list[int] | None = None
    structs = state_structs(state)
    aux = line = entered = None
    states = len(jax.tree.leaves(structs))
    for size in sorted(set(microbatches.sizes), reverse=True):
        struct = microbatches.struct(size)
        program, aux, entered = _trace(loss_fn, params, structs, struct, costs, stages, entered)
        counted = costs.of_program(program) if line is None else None
        line = line_of(program, counted, num_microbatches, line)
        if cuts is None:
            if balance == "measured" and boundaries is None:
                line = _measure(line, stages, session)
            cuts = _choose(line, stages, boundaries, imbalance)
            if session is not None:
                cuts = session.control.broadcast(np.asarray(cuts, np.int64)).tolist()
        elif not alike(parts[max(parts)], line, states):
            raise ValueError(
                "loss_fn computes different things, or auxiliary outputs of different shapes, for "
                "micro-batches of different sizes, "
                f"{microbatches.sizes[0]} and {size} samples. Choose num_microbatches so that it "
                f"divides the {microbatches.samples} samples of a batch."
            )
        assert cuts is not None
        parts[size] = SizedPlan(program, line, stages_of(line, cuts))
    assert cuts is not None
    largest = parts[max(parts)]
    holding = Holding.of(params, largest.stages, num_partitions)
    return Plan(
        loss_fn, num_partitions, chunks, microbatches, tuple(cuts), parts, holding, aux, structs
    )


def _check_params(params: PyTree) -> None:
    for path, leaf in jax.tree.leaves_with_path(params):
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(
                f"Parameters must be floating-point arrays, got {dtype or type(leaf).__name__} at "
                f"{jax.tree_util.keystr(path)}. Put untrained arrays into the batch, or close over "
                "them."
            )


def _trace(
    loss_fn: Callable[..., Any],
    params: PyTree,
    state: PyTree,
    struct: PyTree,
    costs: Costs,
    stages: int,
    entered: Sequence[bool] | None,
) -> tuple[Program, Any, Sequence[bool]]:
    """Traces the loss; takes apart rematerialised calls that are too large a part of a stage.

    `entered` holds, for each such call, whether it was taken apart for larger micro-batches: the
    choice for smaller ones is the same.
    """
    limit, chosen = 0.0, []

    def enter(eqn: Any) -> bool:
        before = entered[len(chosen) :] if entered is not None else ()
        chosen.append(before[0] if before else costs.of(eqn).total > limit)
        return chosen[-1]

    program, aux = trace(loss_fn, params, state, struct)
    if entered is None:
        found = costs.of_program(program)
        limit = sum(cost.total for cost in found) / (4 * stages)
        calls = [
            cost.total
            for eqn, cost in zip(program.eqns, found, strict=True)
            if eqn.primitive.name in REMAT
        ]
    if stages > 1 and (any(entered) if entered is not None else max(calls, default=0.0) > limit):
        program, aux = trace(loss_fn, params, state, struct, enter)
    return program, aux, chosen if entered is None else entered


def _measure(line: Line, stages: int, session: Session | None) -> Line:
    """Returns the line with measured costs, those of node 0 on all nodes."""
    if session is None or session.node == 0:
        line = dataclasses.replace(line, costs=tuple(measured_costs(line, line.costs, stages)))
    if session is not None:
        costs = session.control.broadcast(np.asarray(line.costs, np.float64))
        line = dataclasses.replace(line, costs=tuple(Cost(*row) for row in costs.tolist()))
    return line


def _choose(
    line: Line, stages: int, boundaries: Sequence[int | str] | None, imbalance: float
) -> list[int]:
    length = len(line.places)
    if boundaries is not None:
        return _by_hand(line, stages, boundaries)
    marks = [place for place in line.marks if 0 < place < length and place not in line.inside_spans]
    free = [place for place in range(1, length) if place not in line.inside_spans]
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
    names = [line.label(place) for place in range(length)]
    for boundary in boundaries:
        if isinstance(boundary, str):
            found = [place for place, name in enumerate(names) if f"/{boundary}" in f"/{name}"]
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
    if wrong := sorted(set(cuts) & line.inside_spans):
        raise ValueError(
            f"boundaries {wrong} lie between the first and the last use of a leaf of the state, "
            "which one stage must hold. Cut before or after."
        )
    return cuts
