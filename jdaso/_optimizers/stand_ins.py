"""Small arrays in place of parameters, on which an inner optimizer is tried."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.types import PyTree, ShapeDtype


def zeros_of(params: PyTree, side: int | None) -> PyTree:
    """Zeros in place of the parameters, with axes no longer than `side`."""

    def zeros(x: ShapeDtype) -> jax.Array:
        return jnp.zeros(tuple(min(n, side or n) for n in x.shape), x.dtype)

    return jax.tree.map(zeros, params)


def shape_of(x: Any) -> ShapeDtype:
    """Shape and dtype of a leaf; a number for a key, which optimizers leave alone alike."""
    dtype = jnp.result_type(x)
    is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return ShapeDtype(np.shape(x), jnp.uint32 if is_key else dtype)
