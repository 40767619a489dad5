"""The activity of each local device of a node between the marks of its compiled step."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

_SHORTEST_SECONDS = 2e-5
"""Shorter intervals lie between two calls to the host, and are not work of a device."""


class _Stand(NamedTuple):
    """A time in which all devices of the node stood still."""

    name: str
    step: int
    begin_seconds: float
    end_seconds: float
    device: int | None  # the device that already shows it


Stretch = tuple[str, int, float, float]
"""Name, step, start and end in seconds."""


class Stretches:
    """Cuts the time of each device at its marks, and at times in which it stood still.

    Only one device of a node waits in the host; the others wait for it in a collective, unseen.
    """

    def __init__(self):
        self._since: dict[int, float] = {}
        self._stands: deque[_Stand] = deque(maxlen=256)
        self._lock = threading.Lock()

    def stand(
        self, name: str, step: int, begin_seconds: float, end_seconds: float, device: int | None
    ) -> None:
        """Adds a time in which all devices stood still; the lane of one may already show it."""
        with self._lock:
            self._stands.append(_Stand(name, step, begin_seconds, end_seconds, device))

    def mark(self, name: str, step: int, device: int, now: float) -> list[Stretch]:
        """The stretches of a device since its last mark; before the first, only the standstills."""
        with self._lock:
            first = device not in self._since
            since = self._since.get(device, 0.0)
            self._since[device] = now
            stands = [s for s in self._stands if s.end_seconds > since and s.begin_seconds < now]
        found: list[Stretch] = []
        for stand in sorted(stands, key=lambda stand: stand.begin_seconds):
            begin, end = max(stand.begin_seconds, since), min(stand.end_seconds, now)
            # A merge begins with a wait: the time up to a standstill counts as waiting.
            found.append(("wait" if name == "merge" else name, step, since, begin))
            shown = stand.device == device
            found.append((stand.name, stand.step, end if shown else begin, end))
            since = max(since, end)
        found.append((name, step, since, now))
        if first:  # the start of a device's first activity is unknown
            found = found[1:-1:2]
        return [stretch for stretch in found if stretch[3] - stretch[2] >= _SHORTEST_SECONDS]
