"""Checks of the settings that `jdaso.daso` and `jdaso.synchronous` share."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from .._jax.types import PyTree
from .._payload.layout import describe
from .._rules.merge import Merge, Outer
from .._rules.phases import Phases
from .._session import Session

log = logging.getLogger("jdaso")

SAFE_GAIN, STUDIED_STEPS = 1.5, 64
"""The largest gain of an outer optimizer that our study found harmless, and its largest B."""


def require_params(params: PyTree | None, name: str) -> PyTree:
    """Returns the parameters; raises if they are None."""
    if params is None:
        raise ValueError(
            f"jdaso.{name} needs the parameters, got params=None. "
            "Call tx.update(grads, state, params)."
        )
    return params


def check_scalars(call: str, **given: Any) -> None:
    """Raises unless arguments of ``tx.update`` are scalars.

    Args:
        call: the optimizer's name.
        given: arguments by name; None for one that was not given.
    """
    for name, x in given.items():
        if x is not None and (shape := jnp.shape(x)) != ():
            raise ValueError(
                f"jdaso.{call}: tx.update(..., {name}=) takes a scalar, got an array of shape "
                f"{shape}. Pass one number of this node, as in jnp.mean(x)."
            )


def refuse_narrow_floats(params: PyTree) -> None:
    """Raises if a parameter has a float of 8 bits or less, to which JAX adds no other number."""
    for leaf in describe(params):
        if leaf.dtype.startswith("float") and jnp.dtype(leaf.dtype).itemsize < 2:
            raise ValueError(
                f"jdaso.daso does not train parameters of {leaf.dtype} (leaf {leaf.path}). Keep "
                "them in bfloat16 or float32, and round copies of them for the computation."
            )


def check_blocking(blocking: str) -> None:
    """Raises unless `blocking` is one of the two ways to average while waiting."""
    if blocking not in ("gradients", "parameters"):
        raise ValueError(f'blocking must be "gradients" or "parameters", got {blocking!r}.')


def check_shared(setting: str, value: str) -> None:
    """Raises unless a setting is "shared" (between the nodes) or "own" (each node's)."""
    if value not in ("shared", "own"):
        raise ValueError(f'{setting} must be "shared" or "own", got {value!r}.')


ON_DRIFT = ("raise", "ignore")


def check_on_drift(on_drift: str) -> None:
    """Raises unless `on_drift` is a reaction to nodes that diverged."""
    if on_drift not in ON_DRIFT:
        raise ValueError(f'on_drift must be "raise" or "ignore", got {on_drift!r}.')


def check_rule(rule: Merge, session: Session) -> None:
    """Raises if a merge rule needs whole leaves and the ranks of a node have only parts."""
    if not session.joined or rule.acts_by_element():
        return
    raise ValueError(
        f"The merge rule {rule.name!r} does not treat each number separately (a norm, or labels "
        f"by name), and with ranks_per_node={session.ranks_per_node} each rank merges its parts of "
        'the leaves alone. Use an optimizer such as optax.sgd or optax.adam, or merge="corrected".'
    )


def warn_of_gain(rule: Merge, phases: Phases, session: Session) -> None:
    """Warns if an outer optimizer runs further ahead of the nodes' mean than was found safe."""
    if not isinstance(rule, Outer) or session.num_nodes == 1:
        return
    try:
        gain = rule.gain()
    except Exception:  # an optimizer that does not take a single number
        log.debug("the outer optimizer was not tried", exc_info=True)
        return
    every = max(sync_every for sync_every, _ in phases.pairs)
    if gain is not None and gain > SAFE_GAIN and every <= STUDIED_STEPS and _logs(session):
        log.warning(
            "jdaso.outer: the outer optimizer moves %.2g times as far as the nodes' mean "
            "(learning rate / (1 - momentum)), with sync_every=%d on %d nodes. With sync_every up "
            "to %d, more than %g cost accuracy in our study (docs/choosing.md). Lower the learning "
            'rate or the momentum, or use merge="corrected".',
            gain,
            every,
            session.num_nodes,
            STUDIED_STEPS,
            SAFE_GAIN,
        )


def _logs(session: Session) -> bool:
    """Returns whether this rank logs for all ranks."""
    return session.node == 0 and session.topology.place == 0


def warn_of_own_moments(missed: Sequence[str], failure: str, session: Session) -> None:
    """Warns of moments that look like Adam's but, contrary to expectation, are not shared.

    Args:
        missed: the paths of the second moments.
        failure: the error that ended the trial; "" if there was none.
        session: the nodes.
    """
    if missed and _logs(session):
        why = (
            "they are not running means of the squares of the numbers whose running means are the "
            "first moments, or the first moments decay too fast"
        )
        remedy = "If rounding is the reason, moments in float32 help"
        if failure:
            why = f"the trial that finds them, without arguments of your own, failed ({failure})"
            remedy = "An inner optimizer that can be called with its own defaults helps"
        log.warning(
            "daso does not share %d second moments of the inner optimizer (%s%s): %s. While nodes "
            "cycle, steps there are up to sqrt(P) times too short (docs/choosing.md, Second "
            'moments). %s; second_moments="own" silences this.',
            len(missed),
            missed[0],
            "" if len(missed) == 1 else ", ...",
            why,
            remedy,
        )


def warn_of_own_lengths(failure: str, session: Session) -> None:
    """Warns of updates whose lengths may be fixed, and whose trial failed.

    Args:
        failure: the error that ended the trial; "" if there was none.
        session: the nodes.
    """
    if failure and _logs(session):
        log.warning(
            "daso cannot tell whether updates of the inner optimizer have a fixed length, as those "
            "of Muon and Lion do: the trial, without arguments of your own, failed (%s). While "
            "nodes cycle, such updates are up to sqrt(P) times too short (docs/choosing.md). An "
            'inner optimizer that can be called with its own defaults helps; update_lengths="own" '
            "silences this.",
            failure,
        )
