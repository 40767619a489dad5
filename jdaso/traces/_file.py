"""The rows of one node's file, each checked; damaged ones are named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ._chrome_format import Row
from ._timeline import Event

KINDS = tuple(f'{{"kind":"{kind}"' for kind in ("trace", "event", "clock"))
"""Beginnings of a trace's rows in a node's file, which may hold rows of `jdaso.metrics` too."""

_ANY_KIND = '{"kind":"'
_TEXTS, _WHOLE = ("name", "lane", "of"), ("step", "chunk", "size_bytes")
_CLOCK = ("begin", "end", "correction", "bound_seconds")


class NodeFile:
    """The rows of the latest trace in a file.

    Args:
        damaged: see below.
        steps: events of these steps are kept; of all if None.

    Attributes:
        about: the row about the node; None if the file has no trace, or the row is damaged.
        events: in seconds of the file.
        closed: whether the session ended.
        drift: the clock's drift as measured at the end; empty if it was not.
        damaged: rows that cannot be read, as "node-00003.jsonl, line 17: why".
    """

    def __init__(self, damaged: list[str], steps: range | None = None):
        self._steps = steps
        self.about: Row | None = None
        self.events: list[Event] = []
        self.closed = False
        self.drift: Row = {}
        self.damaged = damaged

    def take(self, row: Row) -> None:
        """Adds a row.

        Raises:
            ValueError, TypeError, KeyError: the row is damaged.
        """
        if row["kind"] == "trace":
            self.about = _about_of(row)
        elif self.about is not None and row["kind"] == "event":
            event = _event_of(row)
            if self._steps is None or event.step in self._steps:
                self.events.append(event)
        elif self.about is not None:
            self.drift = {name: _number(row[name]) for name in _CLOCK if len(row) > 1}
            self.closed = True


def read_file(path: Path, steps: range | None = None) -> NodeFile:
    """Reads the latest trace in a file: the events of some steps, or all."""
    found = NodeFile([], steps)
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            ours = line.startswith(KINDS)
            if not ours and (line.startswith(_ANY_KIND) or not line.strip()):
                continue
            if line.startswith(KINDS[0]):
                found = NodeFile([], steps)
            try:
                found.take(json.loads(line))
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                why = str(error).partition("\n")[0]
                found.damaged.append(f"{path.name}, line {number}: {why}")
    return found


def _about_of(row: Row) -> Row:
    """Returns the row about a node, with the numbers that readers use."""
    if not isinstance(row["host"], str):
        raise ValueError(f"its host is {row['host']!r}")
    whole = {name: _whole(row[name]) for name in ("node", "num_nodes")}
    unix = _number(row["unix_seconds"])
    return {**row, **whole, "unix_seconds": unix, "bound_seconds": _bound(row["bound_seconds"])}


def _event_of(row: Row) -> Event:
    """Returns the event of a row."""
    fields: dict[str, Any] = {name: x for name, x in row.items() if name != "kind"}
    begin, end = (_number(fields.pop(name)) for name in ("begin", "end"))
    for name in _TEXTS:
        if not isinstance(fields.get(name, ""), str):
            raise ValueError(f"its {name} is {fields[name]!r}")
    fields |= {name: _whole(fields[name]) for name in _WHOLE if name in fields}
    return Event(**fields, begin_seconds=begin, end_seconds=end)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value)


def _bound(value: Any) -> float:
    """Returns the error of a clock, infinite if unknown."""
    return math.inf if value == "Infinity" else _number(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value
