"""Check of an argument that must be an optax transformation."""

from __future__ import annotations

from typing import Any


def require_transformation(given: Any, name: str) -> None:
    """Raises unless `given` has the two functions of an optax transformation.

    Args:
        given: the argument.
        name: its name in the error, such as ``"jdaso.daso: inner"``.

    Raises:
        TypeError: `given` is something else, such as a name, or ``optax.adam`` without its call.
    """
    if callable(getattr(given, "init", None)) and callable(getattr(given, "update", None)):
        return
    called = getattr(given, "__name__", None) if callable(given) else None
    advice = f" Call {called}: {called}(...)." if called else ""
    raise TypeError(
        f"{name} must be an optax transformation, such as optax.adam(1e-3), got {given!r}.{advice}"
    )
