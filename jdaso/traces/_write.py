"""Writes the traces of all nodes, and JAX profiles, as one file for Perfetto."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from ._chrome_format import Row, TraceRows
from ._profiles import Profile
from ._read import Trace
from ._timeline import Event


def merge(trace: Trace, profiles: Iterable[Profile] = ()) -> list[Row]:
    """Rows of Chrome's trace format: a process per node, a thread per lane; in the order of time.

    Args:
        trace: the traces of all nodes.
        profiles: profiles of some of them, recorded by `jax.profiler` during the trace.

    Returns:
        The rows; times are microseconds of node 0's clock since node 0 began.

    Raises:
        TraceError: a profile contains no time that shows its clock.
    """
    rows: list[Row] = []
    for node in trace.nodes:
        made = TraceRows(node.node, lambda seconds: 1e6 * seconds)
        rows += made.process(node.host)
        for event in untangled(node.events):
            rows += made.of(event)
    for number, profile in enumerate(profiles):
        rows += profile.rows(trace, first_process=trace.num_nodes + 10_000 * (number + 1))
    # Names come before the rows they name, and outer events before inner ones.
    return sorted(rows, key=lambda row: (row["ph"] != "M", row.get("ts", 0.0), -row.get("dur", 0)))


def untangled(events: Iterable[Event]) -> Iterator[Event]:
    """Events in the order of their starts; events that would cross in a lane get a further lane.

    Two threads of a device may copy at the same time, and Perfetto draws the bars of a lane beside
    or within each other. Times are compared in nanoseconds, as stored in the file.
    """
    timed = [(round(1e9 * x.begin_seconds), round(1e9 * x.end_seconds), x) for x in events]
    open_ends: dict[str, list[list[int]]] = {}  # of each lane and its further ones
    for begin, end, event in sorted(timed, key=lambda x: (x[0], -x[1])):
        lanes = open_ends.setdefault(event.lane, [])
        for ends in lanes:
            while ends and ends[-1] <= begin:
                ends.pop()
        fits = (n for n, ends in enumerate(lanes) if not ends or end <= ends[-1])
        number = next(fits, len(lanes))
        if number == len(lanes):
            lanes.append([])
        lanes[number].append(end)
        yield event._replace(lane=f"{event.lane} ({number + 1})") if number else event


def write(rows: Iterable[Row], path: str | Path) -> None:
    """Writes rows as a file for Perfetto, compressed if its name ends in ``.gz``."""
    path = Path(path)
    text = json.dumps({"traceEvents": list(rows), "displayTimeUnit": "ms"}, separators=(",", ":"))
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), compresslevel=6))
    else:
        path.write_text(text, encoding="utf-8")
