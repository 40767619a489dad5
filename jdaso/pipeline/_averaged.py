"""The optimizer of a partition, averaged with the same partition of the other replicas."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import optax

from .._jax.types import PyTree
from .._optimizers.daso import daso
from .._optimizers.find_moments import pairs_of
from .._optimizers.synchronous import synchronous
from .._rules.phases import Phases
from .._session import Session
from ._plan.plan import Plan
from ._run.grid import Grid

log = logging.getLogger("jdaso")


@runtime_checkable
class Placed(Protocol):
    """A pipeline, as it is needed here: its plan, and its nodes."""

    plan: Plan
    grid: Grid
    session: Session
    replicas: Session


def check_settings(settings: Mapping[str, Any], phases: Phases | None) -> None:
    """Raises before anything is made that only `Pipeline.close` frees."""
    make = synchronous if phases is None else daso
    known = set(inspect.signature(make).parameters) - {"inner", "session", "phases", "local_axis"}
    if unknown := sorted(set(settings) - known):
        raise ValueError(
            f"settings has {', '.join(unknown)}, and jdaso.{make.__name__} takes "
            f"{', '.join(sorted(known))}."
        )
    if phases is not None and phases.sync_every == "auto" and phases.by_loss is None:
        raise ValueError(
            'A pipeline needs a number for sync_every, got "auto": its partitions measure '
            "different times, and would be averaged at different steps. `python -m jdaso "
            "simulate --advise` finds one."
        )


def averaged(
    inner: optax.GradientTransformation,
    phases: Phases | None,
    settings: Mapping[str, Any],
    pipeline: Placed,
) -> optax.GradientTransformationExtraArgs:
    """Returns `jdaso.daso` of these phases, or `jdaso.synchronous`; all nodes call this together.

    Args:
        inner: the optimizer of this rank's parameters.
        phases: those of `daso`; None for `synchronous`.
        settings: further arguments.
        pipeline: its plan and nodes.
    """
    replicas, common = pipeline.replicas, dict(settings, session=pipeline.replicas)
    if phases is None:
        return synchronous(inner, **common)
    shares = common.get("second_moments", "shared") == "shared"
    late = replicas.num_nodes > 1 and phases.cycling_steps > 0
    late = late and common.get("blocking", "gradients") == "gradients"
    if shares and late and not _moments_fit(inner, pipeline):
        common["second_moments"] = "own"
    if phases.fragments == "auto":
        phases = dataclasses.replace(phases, fragments=1)
    if common.get("wire") == "auto":
        replicas.go_on_with(pipeline.session.fastest_wire())  # the same on all partitions
    return daso(inner, phases=phases, **common)


def _moments_fit(inner: optax.GradientTransformation, pipeline: Placed) -> bool:
    """Returns whether `daso` may share second moments on all partitions.

    A partition that shares them runs the optimizer twice. If that sends messages, all partitions,
    or none, must have such moments.
    """
    plan, session = pipeline.plan, pipeline.session
    if plan.num_partitions == 1:
        return True
    structs = plan.holding.own_structs(pipeline.grid.partition)
    state = jax.eval_shape(inner.init, structs)
    mine = bool(pairs_of(structs, state)), _sends(inner, structs, state)
    said = session.all_ranks.everyone("make a pipeline", json.dumps(mine))
    have, send = map(set, zip(*map(json.loads, said), strict=True))
    fit = len(have) == 1 or True not in send
    if not fit and session.node == 0:
        log.warning(
            "%s Some partitions have no parameters with second moments, so that nodes keep "
            'their own (second_moments="own").',
            session.topology.prefix(),
        )
    return fit


def _sends(inner: optax.GradientTransformation, params: PyTree, state: PyTree) -> bool:
    """Returns whether an update sends messages, as far as its trace shows."""
    try:
        update = optax.with_extra_args_support(inner).update
        return "jdaso_host_call" in str(jax.make_jaxpr(update)(params, state, params))
    except Exception:  # it needs a loss, or other arguments
        return True
