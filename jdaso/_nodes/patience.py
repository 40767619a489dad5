"""Limits of waits, derived from waits that succeeded, and the current wait of this node."""

from __future__ import annotations

import math
import time
from collections import deque

_WARN_FIRST_SECONDS = 30.0
_LEAST_LIMIT_SECONDS, _LEAST_SILENCE_SECONDS = 600.0, 60.0
_LIMIT, _SILENCE = 100, 20
"""Limits as multiples of the usual wait: in general, and while a missing node is silent."""

_WAITING_SECONDS = 1.0
"""A wait that has not polled for this long has ended."""


class Patience:
    """The usual duration of waits, and the limits that follow from it.

    Args:
        timeout_seconds: the longest wait; None derives it from past waits.
    """

    def __init__(self, timeout_seconds: float | None):
        self._timeout_seconds = timeout_seconds
        self._taken: dict[str, deque[float]] = {}

    def note(self, kind: str, seconds: float) -> None:
        """Notes how long a wait of this kind took, from its start on all nodes to its end."""
        self._taken.setdefault(kind, deque(maxlen=16)).append(seconds)

    def usual_seconds(self, kind: str) -> float | None:
        """The longest of the last 16 waits; None before the first."""
        taken = self._taken.get(kind)
        return max(taken) if taken else None

    def warn_seconds(self, kind: str, late_seconds: float = 0.0) -> float:
        """The time after which a wait is reported, if news takes `late_seconds` to arrive."""
        usual = self.usual_seconds(kind)
        return _WARN_FIRST_SECONDS if usual is None else 2 * usual + max(late_seconds, 1.0)

    def limit_seconds(self, kind: str) -> float:
        """The longest wait."""
        if self._timeout_seconds is not None:
            return self._timeout_seconds
        return max(_LEAST_LIMIT_SECONDS, _LIMIT * (self.usual_seconds(kind) or 0.0))

    def silence_seconds(self, kind: str) -> float:
        """The longest wait for a node that is silent and whose process may not run."""
        if self._timeout_seconds is not None:
            return self._timeout_seconds
        return max(_LEAST_SILENCE_SECONDS, _SILENCE * (self.usual_seconds(kind) or 0.0))


class Waiting:
    """The current wait of a node's program, in any of its sessions."""

    def __init__(self):
        self._last = (-math.inf, "")  # another thread reads both, so they are replaced together

    def note(self, doing: str) -> None:
        """Notes a wait that goes on: "waits for the exchange started at step 3, for 2.0 s now"."""
        self._last = (time.monotonic(), doing)

    def now(self) -> str:
        """The current wait; empty if the last wait has ended."""
        looked, doing = self._last
        return doing if time.monotonic() - looked < _WAITING_SECONDS else ""
