"""Limits of waits, learnt from those that ended well, and which node waits for what."""

from __future__ import annotations

import math
import time
from collections import deque

_WARN_FIRST_SECONDS = 30.0
_LEAST_LIMIT_SECONDS, _LEAST_SILENCE_SECONDS = 600.0, 60.0
_LIMIT, _SILENCE = 100, 20
"""Times the usual: how long a wait may last; and while a missing node is silent."""

_WAITING_SECONDS = 1.0
"""A wait looks around more often than that: one that did not for so long has ended."""


class Patience:
    """How long waits usually take, and so how long to wait.

    Args:
        timeout_seconds: the longest wait; None derives it from what is usual.
    """

    def __init__(self, timeout_seconds: float | None):
        self._timeout_seconds = timeout_seconds
        self._taken: dict[str, deque[float]] = {}

    def note(self, kind: str, seconds: float) -> None:
        """A wait of this kind took so long, from its begin on all nodes to its end."""
        self._taken.setdefault(kind, deque(maxlen=16)).append(seconds)

    def usual_seconds(self, kind: str) -> float | None:
        """The longest of the last few; None before the first."""
        taken = self._taken.get(kind)
        return max(taken) if taken else None

    def warn_seconds(self, kind: str, late_seconds: float = 0.0) -> float:
        """After how long a wait is reported, where news take so long."""
        usual = self.usual_seconds(kind)
        return _WARN_FIRST_SECONDS if usual is None else 2 * usual + max(late_seconds, 1.0)

    def limit_seconds(self, kind: str) -> float:
        """The longest wait."""
        if self._timeout_seconds is not None:
            return self._timeout_seconds
        return max(_LEAST_LIMIT_SECONDS, _LIMIT * (self.usual_seconds(kind) or 0.0))

    def silence_seconds(self, kind: str) -> float:
        """The longest wait for a node of which nothing is heard, and whose process may not run."""
        if self._timeout_seconds is not None:
            return self._timeout_seconds
        return max(_LEAST_SILENCE_SECONDS, _SILENCE * (self.usual_seconds(kind) or 0.0))


class Waiting:
    """What a node's program waits for, if it does, whichever of its sessions it waits in."""

    def __init__(self):
        self._last = (-math.inf, "")  # another thread reads it, so it is replaced as one

    def note(self, doing: str) -> None:
        """A wait looks around: "waits for the exchange started at step 3, for 2.0 s now"."""
        self._last = (time.monotonic(), doing)

    def now(self) -> str:
        """What it does; nothing where the last wait has ended."""
        looked, doing = self._last
        return doing if time.monotonic() - looked < _WAITING_SECONDS else ""
