"""Second moments of Adam's kind, as if a node had the batch of all nodes.

A gradient of one of P nodes is ``mu + e``, where e is the noise of its part of the batch, of
variance ``s^2``. The node's second moments v tend to ``mu^2 + s^2``, those of the mean of P
gradients to ``mu^2 + s^2 / P``. So while nodes cycle, their own v are too large, up to P times, and
their steps too short, up to ``sqrt(P)`` times.

First moments m, which decay at the rate d, tend to mu with the variance ``k s^2``,
``k = (1 - d) / (1 + d)``. Together they estimate mu, as far as m is larger than its noise::

    mu^2      = (m^2 - 3 k v) / (1 - 3 k), within [0, v]
    shared(v) = mu^2 + (v - mu^2) / P

(With k alone it would be right on average, but not within bounds: noise would leave half of
``k v``. Three times the noise leaves a sixth.) This lies between ``v / P`` and v: no step is longer
than ``sqrt(P)`` times the node's own. Both moments come from the same gradients, so that a scale
that clipping gave them cancels out.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

_NOISE = 3
"""Multiple of its noise above which a first moment counts; see benchmarks/NOTES.md."""

LEAST_DECAY = 0.7
"""First moments that decay faster are too noisy to be useful."""


def shared(own: Any, first: Any, nodes: int, decay: float) -> Any:
    """The second moments of the mean gradient of all nodes.

    Args:
        own: the node's second moments v, float32, like all arrays here.
        first: its first moments m, as far from their limits as v.
        nodes: P.
        decay: d of the first moments, at least `LEAST_DECAY`.
    """
    square = _square_of_mean(own, first, decay)
    return square + (own - square) / nodes


def own_of(second: Any, first: Any, nodes: int, decay: float) -> Any:
    """The second moments that a node would have on its own, given those of the mean gradient."""
    return second + (nodes - 1) * (second - _square_of_mean(second, first, decay))


def _square_of_mean(second: Any, first: Any, decay: float) -> Any:
    """``mu^2``."""
    noise = _NOISE * (1 - decay) / (1 + decay)
    return jnp.clip((jnp.square(first) - noise * second) / (1 - noise), 0, second)
