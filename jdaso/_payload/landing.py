"""The value that a parameter has once the update to a target is added, on the host."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def arrival(target: np.ndarray, param: np.ndarray, update: Any) -> np.ndarray:
    """``p + (t - p)`` with the step's roundings, float32; a complex array as pairs.

    Args:
        target: t, float32.
        param: p, in its own dtype.
        update: the dtype of the update; None if there is none, so that p stays.
    """
    start, end = _reals(param), np.asarray(target)
    if update is None:
        return start.astype(np.float32)
    update = np.real(np.zeros(0, update)).dtype
    wide = jnp.promote_types(start.dtype, jnp.float32)
    total = jnp.promote_types(start.dtype, update)
    with np.errstate(all="ignore"):  # numbers need not be finite
        moved = end.astype(start.dtype).astype(wide) - start.astype(wide)
        landed = start.astype(total) + moved.astype(update).astype(total)
        return np.asarray(landed.astype(start.dtype).astype(np.float32))


def _reals(array: np.ndarray) -> np.ndarray:
    """The array; a complex one with a last axis of real and imaginary part."""
    if not np.iscomplexobj(array):
        return array
    return np.stack([np.real(array), np.imag(array)], axis=-1)
