"""Checks of the settings that `jdaso.daso` and `jdaso.synchronous` share."""

from __future__ import annotations

from .._types import PyTree


def require_params(params: PyTree | None, name: str) -> PyTree:
    """Returns the parameters; raises if they are None."""
    if params is None:
        raise ValueError(
            f"jdaso.{name} needs the parameters, got params=None. "
            "Call tx.update(grads, state, params)."
        )
    return params


def check_blocking(blocking: str) -> None:
    """Raises unless `blocking` is one of the two ways to average while waiting."""
    if blocking not in ("gradients", "parameters"):
        raise ValueError(f'blocking must be "gradients" or "parameters", got {blocking!r}.')


def check_second_moments(second_moments: str) -> None:
    """Raises unless `second_moments` is one of the two kinds."""
    if second_moments not in ("shared", "own"):
        raise ValueError(f'second_moments must be "shared" or "own", got {second_moments!r}.')


ON_DRIFT = ("raise", "ignore")


def check_on_drift(on_drift: str) -> None:
    """Raises unless `on_drift` is a reaction to nodes that diverged."""
    if on_drift not in ON_DRIFT:
        raise ValueError(f'on_drift must be "raise" or "ignore", got {on_drift!r}.')
