"""Averages inside a node, over its own devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from ._compat import varies
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
        return mean_gradients_locally(updates, axis_name), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)  # pyright: ignore


def mean_gradients_locally(grads: PyTree, axis: str | None) -> PyTree:
    """Gradients averaged over the node's devices.

    Under ``shard_map(..., check_vma=True)`` JAX itself sums the gradients of replicated parameters
    over the axis. A mean of equal sums is that sum, L times too large, and nothing tells it from
    a mean that the user took: so it is refused.

    Raises:
        ValueError: JAX knows the gradients to be equal on all devices already.
    """
    if axis is not None:
        require_axis(axis)
        tracked = varies(jax.lax.axis_index(axis), axis)
        floats = [x for x in jax.tree.leaves(grads) if is_float(jnp.result_type(x))]
        if tracked and any(not varies(x, axis) for x in floats):
            raise ValueError(
                f"The gradients are already the same on all devices of axis {axis!r}: under "
                "jax.shard_map with check_vma=True, JAX sums (not averages) the gradients of "
                "replicated parameters. Pass check_vma=False to jax.shard_map; or, if you "
                f"averaged the loss yourself, jax.lax.pcast(grads, {axis!r}, to='varying')."
            )
    return mean_locally(grads, axis)


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
