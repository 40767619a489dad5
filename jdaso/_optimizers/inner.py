"""The inner optimizer: which arguments it is given, and what it must not be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from .._types import PyTree


def update_with(inner: optax.GradientTransformation) -> Callable[..., Any]:
    """The update of `inner`, given only what it takes of the losses that jdaso adds.

    Call it as ``update(grads, state, params, losses, **extra)``. Of `losses` (``value=`` and
    ``mean_loss=``) those are left out that `inner` refuses with a TypeError; what the user passed
    goes to `inner` as it is. A signature does not tell: a chain takes any argument and hands it to
    all its members.
    """
    update, refused = optax.with_extra_args_support(inner).update, set()

    def call(
        grads: PyTree, state: PyTree, params: PyTree, losses: Mapping[str, Any], **extra: Any
    ) -> tuple[PyTree, PyTree]:
        while True:
            given = {name: x for name, x in losses.items() if name not in refused}
            try:
                return update(grads, state, params, **given, **extra)
            except TypeError as error:
                named = {name for name in given if f"'{name}'" in str(error)}
                if not named:
                    raise
                refused.update(named)

    return call


def refuse_line_search(inner_state: PyTree, call: str) -> None:
    """Raises if the state of an inner optimizer is, or holds, that of a line search.

    A line search evaluates ``value_fn``, a node's own loss, as often as that asks for, and the
    nodes would take steps of different lengths from the same gradients.
    """

    def searches(x: Any) -> bool:
        return "linesearch" in type(x).__name__.lower().replace("_", "")

    for state in jax.tree.leaves(inner_state, is_leaf=searches):
        if searches(state):
            raise ValueError(
                f"The inner optimizer of {call} holds a line search ({type(state).__name__}). It "
                "looks for a step length by value_fn, this node's own loss, and the nodes would "
                "part. With several nodes take an optimizer without one, as optax.lbfgs("
                "learning_rate, linesearch=None); on one node line searches work."
            )
