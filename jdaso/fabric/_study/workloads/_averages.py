"""A check of averaged gradients: by sums over each array, which nodes exchange."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np

_STRIDES = 3  # sums over every third number, so that a shift by one shows, too
_TOLERANCE = {"float32": 1e-5, "bfloat16": 2.0**-8, "int8": 1 / 127, "int4": 1 / 7}
"""Wire -> the error of a number, as a share of the largest in its block; float32: of a sum."""


@runtime_checkable
class Adding(Protocol):
    """All that the check asks of a transport."""

    rank: int
    size: int

    def allreduce(self, send: np.ndarray) -> Any:
        """Returns a call that brings the sum of all nodes' numbers."""


def sums_of(leaves: Iterable[Any]) -> np.ndarray:
    """Returns sums over each array, [arrays, 4]: over every third number, and a bound of all.

    The last is ``sqrt(n) |x|``, which is no less than the sum of the n absolute values.
    """
    found = []
    for leaf in leaves:
        x = np.asarray(leaf, np.float32).ravel()
        sums = [x[k::_STRIDES].sum(dtype=np.float64) for k in range(_STRIDES)]
        found.append([*sums, np.sqrt(x.size) * np.linalg.norm(x)])
    return np.array(found)


def check(transport: Adding, own: np.ndarray, found: np.ndarray, wire: str, *, mean: bool) -> None:
    """Raises unless the optimizer was given the right gradients in the first step.

    Args:
        transport: of all nodes, which call this together.
        own: sums over this node's gradients.
        found: sums over those that the optimizer was given.
        wire: the wire that they were sent on.
        mean: whether they have to be the mean of all nodes' gradients; else this node's own.

    Raises:
        RuntimeError: the gradients are wrong; times of such steps would mean nothing.
    """
    expected = own
    if mean:
        summed = transport.allreduce(own.astype(np.float32).ravel())()
        expected = summed.reshape(own.shape) / transport.size
    errors, bounds = np.abs(found - expected)[:, :_STRIDES], expected[:, -1:]
    wrong = errors > _TOLERANCE[wire if mean else "float32"] * bounds
    if wrong.any() or not np.isfinite(found).all():
        meant = "the mean of all nodes" if mean else "the node's own"
        raise RuntimeError(
            f"node {transport.rank} of {transport.size}: {wrong.any(1).sum()} of {len(own)} arrays "
            f"of gradients are not {meant}. Report it with the library's version."
        )
