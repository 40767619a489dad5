"""The order of calls to the host within a compiled step."""

from __future__ import annotations

from typing import Any

import jax


def after(token: Any, x: jax.Array) -> jax.Array:
    """The integers `x`, once `token` is there.

    Args:
        token: an int32 that is always 0; XLA cannot know, because a call to the host returns it.
        x: integers. What is computed from the result runs after that call.
    """
    return x + token
