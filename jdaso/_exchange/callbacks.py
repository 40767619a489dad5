"""Calls from compiled steps to the host's channel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.types import LocalAxis
from .._session import Session


def zeros(shapes: Any, *_: Any) -> Any:
    """Zeros of these shapes; ignores the other arguments."""
    return jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), shapes)


def spread(axis: LocalAxis, x: jax.Array) -> jax.Array:
    """Copies one device's bits to all (-0.0 and NaN too), as a sum; the others hold zeros."""
    if x.dtype == jnp.float32:
        bits = jax.lax.psum(jax.lax.bitcast_convert_type(x, jnp.int32), axis)
        return jax.lax.bitcast_convert_type(bits, jnp.float32)
    return jax.lax.psum(x.astype(jnp.int32), axis).astype(x.dtype)


def guarded(function: Callable[..., Any], session: Session, refused: Any) -> Callable[..., Any]:
    """A callback that never raises: keeps the error for `Session.report`, returns `refused`.

    `refused` is a value, or a function of the arguments.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        try:
            if session.closed:
                raise session.control.closed_error()
            return function(*args)
        except Exception as error:
            session.control.note_broken(error)
            return refused(*args) if callable(refused) else refused

    return call
