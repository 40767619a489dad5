"""Averages inside a node, over its own devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from ._packing import is_float
from ._types import PyTree


def local_mean(axis_name: str) -> optax.GradientTransformation:
    """Averages gradients over the devices of a node: ``g <- pmean(g, axis_name)``.

    Args:
        axis_name: the axis of the ``shard_map`` or ``pmap`` that ``update`` is called in.

    Raises:
        ValueError: in ``update``, if no such axis is bound.
    """

    def update(updates: PyTree, state: optax.EmptyState, params: PyTree | None = None):
        del params
        return mean_locally(updates, axis_name), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def mean_locally(tree: PyTree, axis: str | None) -> PyTree:
    """Float leaves averaged over the node's devices."""
    if axis is None:
        return tree
    require_axis(axis)
    return jax.tree.map(
        lambda x: jax.lax.pmean(x, axis) if is_float(jnp.result_type(x)) else x, tree
    )


def require_axis(axis: str) -> None:
    """Raises if `axis` is not bound where the update is traced."""
    try:
        jax.lax.axis_size(axis)
    except NameError as error:
        raise ValueError(
            f"local_axis={axis!r} is not bound here. Call update inside jax.shard_map or jax.pmap "
            "over an axis of that name, or leave local_axis=None under plain jax.jit."
        ) from error
