"""The inner optimizer: the arguments that it is given, and the kinds that are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from .._types import PyTree


def update_with(inner: optax.GradientTransformation) -> Callable[..., Any]:
    """Returns the update of `inner`, which drops those added losses that `inner` refuses.

    Call it as ``update(grads, state, params, losses, **extra)``. It drops those of `losses`
    (``value=`` and ``mean_loss=``) that `inner` refuses with a TypeError; the user's own arguments
    go to `inner` unchanged. A signature does not help: a chain accepts any argument and passes it
    to all its members.
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
