"""The order of calls to the host within a compiled step.

XLA may reorder independent calls, on each device differently. A call that devices make together
waits for all of them. So two such calls that are independent may wait for ever: device 0 in the
first for device 1, which waits in the second for device 0. Each call of a step that devices make
together therefore takes a number that the previous call returned.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .._payload.words import STATUS


def after(token: Any, x: jax.Array) -> jax.Array:
    """The integers `x`, once `token` is there.

    Args:
        token: an int32 that is always 0; XLA cannot know, because a call to the host returns it.
        x: integers. Computations from the result run after that call.
    """
    return x + token


def token_of(heads: jax.Array) -> jax.Array:
    """A token for `after`, from the headers of a call: the least status, 0 if the node goes on."""
    return jnp.min(heads[:, STATUS])
