"""The state of a model: its shapes and dtypes, before and after a micro-batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..._jax.types import PyTree
from ..._payload.layout import describe, dtype_of


def state_structs(state: PyTree) -> PyTree:
    """Returns the shapes and dtypes that a state has on devices; Python's numbers are scalars.

    Raises:
        TypeError: a leaf is not a number or an array of numbers.
    """
    if any("key<" in leaf.dtype for leaf in describe(state)):
        raise TypeError(
            "A model's state must be numbers, got keys of jax.random. Put keys into the batch, as "
            "for dropout."
        )
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), dtype_of(x)), state)


def check_state(state: PyTree, given: Any) -> Any:
    """Checks the new state; returns the auxiliary output that came with it.

    Args:
        state: shapes and dtypes before a micro-batch.
        given: the auxiliary output of the loss: the new state, and what is left.

    Raises:
        TypeError: the loss returns no state, or one of another structure, shape or dtype.
    """
    if not (isinstance(given, tuple) and len(given) == 2):
        raise TypeError(
            "With a state loss_fn must return (loss, (state, aux)); aux may be None. Got "
            f"{jax.tree.structure(given)} beside the loss."
        )
    trees = jax.tree.structure(given[0]), jax.tree.structure(state)
    if trees[0] != trees[1]:
        raise TypeError(
            f"loss_fn must return a state like the one it takes, but returns {trees[0]} for "
            f"{trees[1]}."
        )
    for old, new in zip(describe(state), describe(given[0]), strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise TypeError(
                "loss_fn must return a state like the one it takes, but leaf "
                f"{old.path} is {old} before and {new} after. Convert it in loss_fn."
            )
    return given[1]
