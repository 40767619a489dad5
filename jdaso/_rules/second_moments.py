"""Second moments of Adam's kind, as if a node had the batch of all nodes.

A gradient of one of P nodes is ``mu + e``, where e is the noise of its part of the batch, of
variance ``s^2``. The node's second moments v tend to ``mu^2 + s^2``, those of the mean of P
gradients to ``mu^2 + s^2 / P``. So while nodes cycle, their own v are too large, up to P times, and
their steps too short, up to ``sqrt(P)`` times.

First moments m, which forget at the rate d, tend to mu with the variance ``k s^2``,
``k = (1 - d) / (1 + d)``. Both together tell mu::

    mu^2      = (m^2 - k v) / (1 - k), within [0, v]
    shared(v) = v / P + (1 - 1 / P) mu^2

This lies between ``v / P`` and v: no step is longer than ``sqrt(P)`` times the node's own. Both
moments come from the same gradients, so that a scale that clipping gave them cancels out.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def shared(own: Any, first: Any, nodes: int, decay: float) -> Any:
    """The second moments of the mean gradient of all nodes.

    Args:
        own: the node's second moments v, float32, like all arrays here.
        first: its first moments m, with no more bias towards 0 than v has.
        nodes: P.
        decay: d of the first moments.
    """
    return own / nodes + (1 - 1 / nodes) * _square_of_mean(own, first, decay)


def own_of(second: Any, first: Any, nodes: int, decay: float) -> Any:
    """The second moments that a node would have by itself, given those of the mean gradient."""
    return nodes * second - (nodes - 1) * _square_of_mean(second, first, decay)


def _square_of_mean(second: Any, first: Any, decay: float) -> Any:
    """``mu^2``."""
    share = (1 - decay) / (1 + decay)
    return jnp.clip((jnp.square(first) - share * second) / (1 - share), 0, second)
