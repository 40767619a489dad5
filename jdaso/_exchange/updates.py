"""Updates that move parameters to the result of an exchange."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .._payload.trees import is_none, travels
from .._types import PyTree


def select(condition: Any, yes: PyTree, no: PyTree) -> PyTree:
    """`jnp.where` over trees."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def weighed(weight: Any, tree: PyTree) -> PyTree:
    """Numbers times this node's weight; unchanged if the weight is None."""
    if weight is None:
        return tree
    return jax.tree.map(lambda x: jnp.where(weight > 0, weight * x, jnp.zeros_like(x)), tree)


def widened(updates: PyTree, params: PyTree) -> PyTree:
    """Updates in a dtype that can lead their parameters anywhere; optax adds the same.

    Those of bfloat16 gradients have 8 bits: a merge would be rounded to these, and nodes would
    never meet.
    """

    def widen(update: Any, param: Any) -> Any:
        if update is None or not travels(param):
            return update
        dtype = jnp.promote_types(jnp.result_type(update), jnp.result_type(param))
        return jnp.asarray(update).astype(dtype)

    return jax.tree.map(widen, updates, params, is_leaf=is_none)


def difference(target: PyTree, params: PyTree, updates: PyTree) -> PyTree:
    """Updates that lead from `params` to `target`; leaves not exchanged keep theirs.

    None stays None: adding the updates skips it.
    """

    def step(old: Any, start: Any, end: Any) -> Any:
        if old is None or not travels(start):
            return old
        wide = jnp.promote_types(jnp.result_type(start), jnp.float32)
        return (end.astype(wide) - jnp.asarray(start, wide)).astype(jnp.result_type(old))

    return jax.tree.map(step, updates, params, target, is_leaf=is_none)


def exchanged(params: PyTree, tree: PyTree) -> list[tuple[int, Any]]:
    """For each exchanged leaf of `params`: the place and the leaf of a tree like `params`.

    The tree may have None in place of a leaf, or of leaves.
    """
    flat, structure = jax.tree.flatten(tree, is_leaf=is_none)
    parts = structure.flatten_up_to(params)
    return [
        (place, x)
        for place, (x, part) in enumerate(zip(flat, parts, strict=True))
        for leaf in jax.tree.leaves(part)
        if travels(leaf)
    ]
