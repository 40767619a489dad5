"""Events as rows of Chrome's trace format, which Perfetto and chrome://tracing open.

Times are microseconds. A process is a node, a thread one of its lanes.

Reference: "Trace Event Format", the document linked in catapult's README.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._timeline import Event

Row = dict[str, Any]

_DIGITS = frozenset("0123456789")
_PLACES = ("steps", "device", "exchange", "worker", "messages", "checkpoint")
_DETAILS = ("chunk", "size_bytes", "of")


class TraceRows:
    """The rows of one node; the first event of a lane is preceded by the lane's name.

    Args:
        node: its number.
        clock: converts the seconds of an `Event` to microseconds.
    """

    def __init__(self, node: int, clock: Callable[[float], float]):
        self._node, self._clock = node, clock
        self._lanes: dict[str, int] = {}

    def named(self, name: str, /, **about: Any) -> Row:
        """A row without a time."""
        return {"ph": "M", "name": name, "pid": self._node, "tid": 0, "args": about}

    def process(self, host: str) -> list[Row]:
        """Rows that name the node's process."""
        name = self.named("process_name", name=f"node {self._node} on {host}")
        return [name, self.named("process_sort_index", sort_index=self._node)]

    def of(self, event: Event) -> list[Row]:
        """The row of an event, after the rows of its lane if the lane is new."""
        rows: list[Row] = []
        if event.lane not in self._lanes:
            thread = self._lanes[event.lane] = len(self._lanes) + 1
            name = self.named("thread_name", name=event.lane)
            place = self.named("thread_sort_index", sort_index=_place(event.lane))
            rows += [{**row, "tid": thread} for row in (name, place)]
        args: dict[str, Any] = {"step": int(event.step)}
        args |= {key: x for key in _DETAILS if (x := getattr(event, key)) is not None}
        begin = round(self._clock(event.begin_seconds), 3)
        end = max(round(self._clock(event.end_seconds), 3), begin)
        row = {"ph": "X", "name": event.name, "cat": event.lane, "pid": self._node}
        row |= {"tid": self._lanes[event.lane], "ts": begin}
        return [*rows, {**row, "dur": round(end - begin, 3), "args": args}]


def _place(lane: str) -> int:
    """The position of a lane among its node's lanes."""
    kind, _, number = lane.partition(" ")
    place = _PLACES.index(kind) if kind in _PLACES else len(_PLACES)
    own, _, further = number.partition(" (")
    digits = ["".join(x for x in part if x in _DIGITS) or "0" for part in (own, further)]
    return 10_000 * place + 10 * int(digits[0]) + int(digits[1])
