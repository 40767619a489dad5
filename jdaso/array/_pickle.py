"""Pickles of arrays: each node's pickle has its own block, so nothing moves."""

from __future__ import annotations

import copyreg
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._array import Array
from ._layout import ArrayLayout
from ._world import world


def restored(block: np.ndarray, layout: ArrayLayout, node: int) -> Array:
    """Returns the array of a pickle, on the current nodes.

    Raises:
        ValueError: the array was split over another number of nodes, or the pickle is another
            node's.
    """
    at = world()
    if layout.split is not None and len(layout.counts) != at.nodes:
        raise ValueError(
            f"The pickle has a block of an array of {len(layout.counts)} nodes, but there are "
            f"{at.nodes} here. Start as many nodes, or save the array itself by save()."
        )
    if layout.split is not None and node != at.node:
        raise ValueError(
            f"The pickle has a block of node {node}, here is node {at.node}. Each node must read "
            "its own pickle; or save the array itself by save()."
        )
    return Array(jnp.asarray(block), layout, at)


def _reduced(x: Array) -> tuple[Any, ...]:
    return restored, (np.asarray(x.block), x.layout, x.world.node)


copyreg.pickle(Array, _reduced)
