"""Marks in compiled steps, from which a trace shows what each local device does."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.host_call import host_call
from .._jax.types import PyTree, ShapeDtype
from .._payload.explicit import replicated
from .._session import Session
from .within_node import device_number

COMPUTE, MERGE, PACK = range(3)
"""Kinds of activity that a mark ends."""

_NAMES = ("compute", "merge", "pack")


def mark(session: Session, kind: Any, step: jax.Array, behind: jax.Array) -> jax.Array:
    """Ends the activity of each local device since its last mark; one call per device.

    Args:
        session: without a trace, or with virtual nodes, no mark is made.
        kind: COMPUTE, MERGE or PACK; may be traced.
        step: completed updates.
        behind: a scalar. The mark is recorded once this value has been computed.

    Returns:
        0. Operations that use it run after the mark.
    """
    if session.recorder is None or session.simulated:
        return jnp.int32(0)
    shape = ShapeDtype((), jnp.int32)
    about = jnp.int32(kind), step, device_number(), behind
    return host_call(
        partial(_mark, session),
        shape,
        *about,
        holder=session,
        everywhere=session.joined,
        joined=session.joined,
    )


def any_of(tree: PyTree) -> jax.Array:
    """One number of a tree, from its first float leaf; 0 if it has none."""
    for leaf in jax.tree.leaves(tree):
        dtype = getattr(leaf, "dtype", type(leaf))
        if jnp.issubdtype(dtype, jnp.floating) and jnp.size(leaf):
            leaf = jnp.asarray(leaf)
            return jnp.max(leaf) if replicated(leaf) is not leaf else jnp.ravel(leaf)[0]
    return jnp.int32(0)


def _mark(session: Session, kind: Any, step: Any, device: Any, _: Any) -> np.ndarray:
    if session.recorder is not None:
        session.recorder.annotate()
        session.timeline.mark(_NAMES[int(kind)], int(step), int(device))
    return np.zeros((), np.int32)
