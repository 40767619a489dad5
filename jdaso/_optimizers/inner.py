"""The inner optimizer: the arguments that it is given, and the kinds that are refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from .._jax.cpus import namespace_of
from .._jax.types import PyTree
from .._payload.layout import path_of
from .._payload.trees import travels


def update_with(inner: optax.GradientTransformation) -> Callable[..., Any]:
    """Returns the update of `inner`, which drops those added losses that `inner` refuses.

    Call it as ``update(grads, state, params, losses, **extra)``. The call drops those of `losses`
    (``value=`` and ``mean_loss=``) that `inner` refuses; the user's own arguments go to `inner`
    unchanged. A signature that lists its arguments decides. A chain accepts any argument and passes
    it to all its members: there the update is tried, and Python's (or optax's) error about an
    unexpected keyword argument is a refusal. Any other TypeError is the inner optimizer's own.
    """
    update = optax.with_extra_args_support(inner).update
    taken, takes_any = _arguments(update)
    refused: set[str] = set()

    def call(
        grads: PyTree, state: PyTree, params: PyTree, losses: Mapping[str, Any], **extra: Any
    ) -> tuple[PyTree, PyTree]:
        given = {name: x for name, x in losses.items() if name in taken or takes_any}
        left_out = set(refused)
        first: TypeError | None = None
        while True:
            try:
                rest = {name: x for name, x in given.items() if name not in left_out}
                found = update(grads, state, params, **rest, **extra)
            except TypeError as error:
                if first is not None and any(repr(name) in str(error) for name in left_out):
                    raise first from None  # one member needs what another one refuses
                named = {name for name in rest if name not in taken and _refuses(error, name)}
                if not named:
                    raise
                first, left_out = first or error, left_out | named
            else:
                refused.update(left_out)
                return found

    return call


def _arguments(update: Callable[..., Any]) -> tuple[set[str], bool]:
    """The arguments that a function lists, and whether it takes any others."""
    try:
        listed = inspect.signature(update).parameters
    except (TypeError, ValueError):  # the signature is unknown
        return set(), True
    takes_any = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in listed.values())
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, x in listed.items() if x.kind in by_name}, takes_any


def _refuses(error: TypeError, name: str) -> bool:
    """Returns whether an error means that this argument was unexpected."""
    return "keyword argument" in str(error).lower() and repr(name) in str(error)


def refuse_line_search(inner_state: PyTree, call: str) -> None:
    """Raises if the state of an inner optimizer is, or holds, that of a line search.

    A line search evaluates ``value_fn``, a node's own loss, as often as that loss requires, and the
    nodes would take steps of different lengths from the same gradients.
    """

    def searches(x: Any) -> bool:
        return "linesearch" in type(x).__name__.lower().replace("_", "")

    for state in jax.tree.leaves(inner_state, is_leaf=searches):
        if searches(state):
            raise ValueError(
                f"The inner optimizer of {call} holds a line search ({type(state).__name__}). It "
                "chooses a step length by value_fn, this node's own loss, so the nodes would "
                "diverge. With several nodes use an optimizer without one, such as optax.lbfgs("
                "learning_rate, linesearch=None); on one node line searches work."
            )


def not_finite(inner_state: PyTree) -> str:
    """Returns the path of the first leaf with NaN or infinity; "" if there is none, or a tracer."""
    for path, x in jax.tree_util.tree_flatten_with_path(inner_state)[0]:
        if isinstance(x, Tracer) or not travels(x) or not getattr(x, "is_fully_addressable", True):
            continue
        if not _is_finite(x):
            return path_of(path)
    return ""


def _is_finite(x: Any) -> bool:
    """True if all numbers are finite in JAX's dtype for them."""
    xp = namespace_of(x)
    with np.errstate(over="ignore"):  # of float64, which becomes float32
        return bool(xp.isfinite(xp.asarray(x, jnp.result_type(x))).all())


def refuse_not_finite(path: str, call: str) -> None:
    """Raises if an inner state begins with NaN or infinity, of which nodes can form no mean.

    Args:
        path: from `not_finite`, the same on all nodes.
        call: the call that makes the optimizer.
    """
    if path:
        raise ValueError(
            f"The state of the inner optimizer of {call} begins with numbers that are not "
            f"finite (leaf {path}), which nodes cannot average. Begin with finite ones; instead of "
            "optax.contrib.reduce_on_plateau use jdaso.reduce_on_plateau."
        )
