"""The order of calls to the host within a compiled step.

XLA may reorder independent calls, on each device differently. A call that devices make together
waits for all of them. So two such calls that are independent may wait for ever: device 0 in the
first for device 1, which waits in the second for device 0. The same holds between nodes, whose
programs XLA orders differently if the user's step differs in a constant. Each call of a step that
devices make together, or that waits for other nodes, therefore takes a number that the previous
call returned.

An update carries this number from call to call. Between the updates and means of one function it
is noted with the trace. Functions that JAX traces by themselves within a step have no order.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .._jax import in_trace
from .._payload.words import STATUS
from .._session import Session


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


def after_last(session: Session, x: jax.Array) -> jax.Array:
    """The integers `x`, once the call noted last in this trace has returned."""
    token = in_trace.last_in_trace() if session.sends else None
    return x if token is None else after(token, x)


def note_last(session: Session, token: jax.Array) -> None:
    """Notes the token of a call, for `after_last`."""
    if session.sends:
        in_trace.note_last(token)
