"""Comparisons of whole arrays, up to rounding or exactly."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp

from ._array import Array, as_array
from ._elementwise import elementwise
from ._reduce import REDUCTIONS


def isclose(
    a: Any, b: Any, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Array:
    """Flags elements with ``|a - b| <= atol + rtol |b|``, like `numpy.isclose`.

    Args:
        a: an array.
        b: an array that is broadcast against it.
        rtol: tolerance as a share of b.
        atol: tolerance in the unit of the elements.
        equal_nan: whether NaN is close to NaN.

    Moves nothing if both have one layout, else the smaller one.
    """
    close = partial(jnp.isclose, rtol=rtol, atol=atol, equal_nan=equal_nan)
    return elementwise(close, as_array(a), as_array(b))


def allclose(
    a: Any, b: Any, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Returns whether all elements are close, as `isclose` has it; the same on all nodes.

    Moves a number from each node, and the smaller array if both are split differently.
    """
    return bool(REDUCTIONS["all"](isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)))


def array_equal(a: Any, b: Any, *, equal_nan: bool = False) -> bool:
    """Returns whether two arrays have one shape and equal elements; the same on all nodes.

    Moves a number from each node, and the smaller array if both are split differently.
    """
    a, b = as_array(a), as_array(b)
    if a.shape != b.shape:
        return False
    same = elementwise(jnp.equal, a, b)
    if equal_nan:
        both = elementwise(lambda x, y: jnp.isnan(x) & jnp.isnan(y), a, b)
        same = elementwise(jnp.logical_or, same, both)
    return bool(REDUCTIONS["all"](same))
