"""Whole numbers, and the types that hold them: in a narrower one they would wrap around."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def require_range(numbers: np.ndarray, dtype: Any) -> None:
    """Raises if whole numbers do not fit a narrower type.

    Raises:
        ValueError: one does not fit.
    """
    kind = np.dtype(dtype)
    if numbers.dtype.kind not in "iu" or kind.kind not in "iu" or not numbers.size:
        return
    if np.can_cast(numbers.dtype, kind):
        return
    about, least, most = np.iinfo(kind), numbers.min(), numbers.max()
    if least < about.min or most > about.max:
        raise ValueError(
            f"Numbers from {least} to {most} do not fit {kind}: JAX computes in 32 bits. Set "
            "JAX_ENABLE_X64=1 in the environment of all nodes, or give dtype=."
        )


def require_fit(x: Any) -> None:
    """Raises if whole numbers of NumPy do not fit the type that JAX has for them.

    Args:
        x: anything; all but arrays and numbers of NumPy pass.

    Raises:
        ValueError: one does not fit.
    """
    if isinstance(x, np.ndarray | np.integer):
        require_range(np.asarray(x), jax.dtypes.canonicalize_dtype(x.dtype))


def require_inside(x: Any, dtype: Any) -> None:
    """Raises `OverflowError` if one of Python's integers does not fit a whole type."""
    kind = jax.dtypes.canonicalize_dtype(dtype)
    if is_outside(x, kind):
        about = np.iinfo(kind)
        raise OverflowError(
            f"{x} does not fit {kind}, which holds {about.min} to {about.max}. Give another dtype, "
            "or for 64 bits set JAX_ENABLE_X64=1 in the environment of all nodes."
        )


def is_outside(x: Any, dtype: Any) -> bool:
    """Returns whether x is one of Python's integers, and a whole type cannot hold it."""
    if type(x) is not int or np.dtype(dtype).kind not in "iu":
        return False
    about = np.iinfo(dtype)
    return not about.min <= x <= about.max
