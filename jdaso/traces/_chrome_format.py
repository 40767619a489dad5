"""Events as rows of Chrome's trace format, which Perfetto and chrome://tracing open, and back.

Times are microseconds. A process is a node, a thread one of its lanes.

Reference: "Trace Event Format", the document that catapult's README points to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from ._timeline import Event

Row = dict[str, Any]

ABOUT, CLOCK = "jdaso", "jdaso clock"
"""Names of the rows that say whose file it is, and how far its clock was off in the end."""

_PLACES = ("steps", "device", "exchange", "worker", "messages", "checkpoint")
_DETAILS = ("chunk", "size_bytes", "of")


class Rows:
    """The rows of one node; those of a lane begin with its name.

    Args:
        node: which one.
        clock: gives the microseconds of what `Event` holds in seconds.
    """

    def __init__(self, node: int, clock: Callable[[float], float]):
        self._node, self._clock = node, clock
        self._lanes: dict[str, int] = {}

    def named(self, name: str, /, **about: Any) -> Row:
        """A row without a time."""
        return {"ph": "M", "name": name, "pid": self._node, "tid": 0, "args": about}

    def process(self, host: str) -> list[Row]:
        """Says which node it is."""
        name = self.named("process_name", name=f"node {self._node} on {host}")
        return [name, self.named("process_sort_index", sort_index=self._node)]

    def of(self, event: Event) -> list[Row]:
        """The row of an event, behind those of its lane if it is the first there."""
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


def text(rows: Iterable[Row]) -> str:
    """Rows as lines of a list that goes on."""
    return "".join(f"{json.dumps(row, separators=(',', ':'), default=str)},\n" for row in rows)


def event_of(row: Row, clock: Callable[[float], float]) -> Event:
    """The event that a row holds; `clock` gives the seconds of its microseconds."""
    args = row["args"]
    begin, end = clock(row["ts"]), clock(row["ts"] + row["dur"])
    details = {key: args.get(key) for key in _DETAILS}
    return Event(row["name"], args["step"], begin, end, row["cat"], **details)


def _place(lane: str) -> int:
    """Where a lane stands among the others of its node."""
    kind, _, number = lane.partition(" ")
    place = _PLACES.index(kind) if kind in _PLACES else len(_PLACES)
    own, _, further = number.partition(" (")
    digits = ["".join(x for x in part if x.isdigit()) or "0" for part in (own, further)]
    return 10_000 * place + 10 * int(digits[0]) + int(digits[1])
