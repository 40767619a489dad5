"""Gradients averaged over the devices of a node, as a transformation of its own."""

from __future__ import annotations

import optax

from .._exchange.within_node import check_gradients, mean_gradients_locally
from .._jax.types import PyTree


def local_mean(axis_name: str | tuple[str, ...]) -> optax.GradientTransformation:
    """Averages gradients over the devices of a node: ``g <- pmean(g, axis_name)``.

    Args:
        axis_name: the axis of the ``shard_map`` or ``pmap`` that ``update`` is called in, or
            a tuple of axes.

    Raises:
        ValueError: in ``update``, if no such axis is bound, or gradients of single examples would
            be averaged.
    """

    def update(updates: PyTree, state: optax.EmptyState, params: PyTree | None = None):
        if params is not None:
            check_gradients(updates, params, "jdaso.local_mean", axis_name, between_nodes=False)
        return mean_gradients_locally(updates, axis_name), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)  # pyright: ignore
