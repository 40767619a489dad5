"""Updates that move parameters to the result of an exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._jax.types import Leaves, PyTree
from .._payload.chains import by_leaf
from .._payload.trees import apply_updates, from_leaves, is_none, to_leaves, travels


def select(condition: Any, yes: PyTree, no: PyTree) -> PyTree:
    """`jnp.where` over trees."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def weighed(weight: Any, tree: PyTree) -> PyTree:
    """Numbers times this node's weight; unchanged if the weight is None."""
    if weight is None:
        return tree
    return jax.tree.map(lambda x: jnp.where(weight > 0, weight * x, jnp.zeros_like(x)), tree)


def widened(updates: PyTree, params: PyTree) -> PyTree:
    """Updates in a dtype that can move their parameters to any value; optax adds the same.

    Those of bfloat16 gradients have 8 bits: a merge would be rounded to these, and nodes would
    never agree.
    """

    def widen(update: Any, param: Any) -> Any:
        if update is None or not travels(param):
            return update
        dtype = jnp.promote_types(jnp.result_type(update), jnp.result_type(param))
        return jnp.asarray(update).astype(dtype)

    return jax.tree.map(widen, updates, params, is_leaf=is_none)


def difference(target: PyTree, params: PyTree, updates: PyTree, into: int | None = None) -> PyTree:
    """Updates that move `params` to `target`; leaves not exchanged keep theirs.

    None stays None: adding the updates skips it.

    Args:
        target: a tree like the parameters.
        params: the parameters.
        updates: updates of the dtypes that are wanted.
        into: 0 if the results may take the memory of the target; see `chains.by_leaf`.
    """
    flat, structure = jax.tree.flatten(updates, is_leaf=is_none)
    starts, ends = structure.flatten_up_to(params), structure.flatten_up_to(target)
    pairs = enumerate(zip(flat, starts, strict=True))
    left = [k for k, (old, start) in pairs if old is not None and travels(start)]
    olds, terms = [flat[k] for k in left], ([ends[k] for k in left], [starts[k] for k in left])
    dtypes = [jnp.result_type(old) for old in olds]
    moves = by_leaf("-", lambda end, start: _step(end, start), *terms, into=into)
    for k, x, dtype in zip(left, moves, dtypes, strict=True):
        flat[k] = x.astype(dtype)
    return jax.tree.unflatten(structure, flat)


def _step(end: Any, start: Any) -> jax.Array:
    wide = jnp.promote_types(jnp.result_type(start), jnp.float32)
    return end.astype(wide) - jnp.asarray(start, wide)


def added_to(params: Sequence[Any], updates: Sequence[Any], changes: Leaves) -> tuple[Any, ...]:
    """Updates that move where these updates do, plus changes: ``((p + u) + c) - p``.

    Args:
        params: leaves that are exchanged.
        updates: of these leaves, whose memory the results may take; None stays None.
        changes: float32.
    """

    def formula(param: Any, update: Any, change: Any) -> Any:
        (own,) = to_leaves(apply_updates(param, update))
        return difference(from_leaves(param, (own + change,)), param, update)

    found = list(updates)
    given = [k for k, update in enumerate(updates) if update is not None]
    groups = [[x[k] for k in given] for x in (params, updates, changes)]
    chained = by_leaf("++-", lambda *x: formula(*x[:3]), *groups, groups[0], into=1)
    for k, x in zip(given, chained, strict=True):
        found[k] = x
    return tuple(found)


def exchanged(params: PyTree, tree: PyTree) -> list[tuple[int, Any]]:
    """Returns for each exchanged leaf of `params` its place, and the leaf of a similar tree.

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
