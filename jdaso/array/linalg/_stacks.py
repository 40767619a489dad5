"""Functions of whole matrices: one matrix on every node, stacks of them shared out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._array import Array, as_array
from .._layout import ArrayLayout
from .._move import resplit


def of_matrices(function: Callable[..., Any], x: Any) -> Any:
    """Applies a function of matrices ``[..., m, n]`` to those that a node has.

    One matrix is gathered: every node needs memory for all of it, and does all of the work. Of a
    stack each node takes some: one that is split along rows or columns is first split along its
    first axis. The results, one array or several, keep the axes of the stack.
    """
    x = square_or_not(x)
    if x.ndim == 2:
        x = resplit(x, None)
    elif x.split is not None and x.split >= x.ndim - 2:
        x = resplit(x, 0)

    def result(block: jax.Array) -> Array:
        shape = (*x.shape[:-2], *block.shape[x.ndim - 2 :])
        return Array(block, ArrayLayout(shape, x.split, x.counts), x.world)

    return jax.tree.map(result, function(x.block))


def square_or_not(x: Any) -> Array:
    """Returns matrices.

    Raises:
        ValueError: there are fewer than two axes.
    """
    x = as_array(x)
    if x.ndim < 2:
        raise ValueError(f"Matrices have two axes or more, the shape is {x.shape}. Reshape it.")
    return x


def square(x: Any) -> Array:
    """Returns square matrices.

    Raises:
        ValueError: the matrices are not square.
    """
    x = square_or_not(x)
    if x.shape[-1] != x.shape[-2]:
        raise ValueError(f"The matrices must be square, the shape is {x.shape}.")
    return x


def inexact(x: Array) -> Array:
    """Returns an array of floats or complex numbers: integers as floats."""
    wide = x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.result_type(float)
    return Array(x.block.astype(wide), x.layout, x.world)
