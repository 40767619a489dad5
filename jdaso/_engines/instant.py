"""Engine for virtual nodes and for a single node: nothing is sent."""

from __future__ import annotations

import numpy as np

from .._payload.wire import Wire
from . import recycled
from .base import heads_of
from .passes import numbers_in, passes_of


class Instant:
    """Engine ``instant``: packs, copies and merges as other engines do, and sends nothing.

    The node's own numbers come back as if all nodes held them: the limit to measure against.
    """

    def __init__(self, wire: Wire, nodes: int):
        self._wire, self._nodes = wire, np.float32(nodes)
        self._passes = passes_of(wire)

    def __call__(
        self, rows: np.ndarray, place: np.ndarray, headed: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns P times the node's own rows."""
        width = place.shape[1]
        numbers = numbers_in(self._wire, width)
        total = recycled.empty((len(rows), numbers), np.float32)
        self._passes.decode(rows[:, :width], total)
        total *= self._nodes
        self._passes.encode(total, place)
        residual = np.zeros(numbers if self._wire.narrow else 0, np.float32)
        return residual, heads_of(self._wire, rows) if headed else None
