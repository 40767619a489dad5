"""Updates of a fixed length, as long as those of the whole batch.

Muon and Lion normalize: an update is as long as the learning rate makes it, whatever the noise of
the gradient. The same holds for synchronous training. But while P nodes cycle, the parameters
follow the mean of P such updates, which point in different directions and whose mean is shorter, up
to ``sqrt(P)`` times. Lengths of progress show how much was lost: between two merges a node goes
from the target t' to its snapshot s, and all nodes together from t' to the next target t::

    c <- 0.9 c + 0.1 |s - t'| / |t - t'|, within [1, sqrt(P)]

A node multiplies its updates by c, and the mean is about as long as one node's update alone. The
directions stay as they are: only the length is made up for.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

_MEMORY = 0.9
"""Share of c that a merge leaves in place."""


def follow(factor: Any, own: Any, mean: Any, nodes: Any) -> Any:
    """The factor c of updates after a merge; 1 after the first, which had no target before it.

    Args:
        factor: c before the merge, ``[K]``, float32, like all arrays here; 0 before the first.
        own: some numbers of the node's progress ``s - t'``, ``[K, N]``.
        mean: the same numbers of ``t - t'``.
        nodes: P.
    """
    lengths = [jnp.sqrt(jnp.sum(jnp.square(x), axis=-1)) for x in (own, mean)]
    known = (factor > 0) & (lengths[0] > 0) & (lengths[1] > 0)  # a node may have made no step
    lost = lengths[0] / jnp.where(known, lengths[1], 1)
    new = jnp.clip(_MEMORY * factor + (1 - _MEMORY) * lost, 1, jnp.sqrt(jnp.float32(nodes)))
    return jnp.where(known, new, jnp.maximum(factor, 1))
