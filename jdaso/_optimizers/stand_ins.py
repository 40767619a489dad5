"""Small arrays in place of the parameters, on which an inner optimizer is run on trial."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._payload.layout import is_float
from .._types import PyTree


def stand_ins(params: PyTree, side: int | None) -> PyTree:
    """Arrays of the same dtypes and numbers of axes; floats get different numbers.

    Args:
        params: the parameters, or their shapes.
        side: the maximum length of an axis; None for the parameters' own shapes.
    """
    random = np.random.default_rng(0)

    def stand_in(x: Any) -> jax.Array:
        dtype, shape = jnp.result_type(x), tuple(min(n, side or n) for n in np.shape(x))
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0, impl=jax.random.key_impl(x)), shape)
        numbers = random.normal(size=shape) if is_float(dtype) else np.zeros(shape)
        return jnp.asarray(numbers).astype(dtype)

    return jax.tree.map(stand_in, params)
