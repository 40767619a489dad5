"""Order of operations in a compiled step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .._types import Chunks


def after(zero: jax.Array, rows: Chunks) -> Chunks:
    """Makes `rows` depend on `zero`: if they are used, `zero` is kept and computed first."""
    last = rows[-1]
    first = jnp.where(zero == 0, last[0, 0], jnp.zeros((), last.dtype))
    return (*rows[:-1], last.at[0, 0].set(first))
