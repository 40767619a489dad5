"""Reads the traces of nodes, on node 0's clock."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .._launch.paths import local_folder
from ._chrome_format import Row
from ._timeline import Event, hidden_share

KINDS = tuple(f'{{"kind":"{kind}"' for kind in ("trace", "event", "clock"))
"""Beginnings of a trace's rows in a node's file, which may hold rows of `jdaso.metrics` too."""


class TraceError(ValueError):
    """A folder contains no trace, or a file is not a trace."""


class NodeTrace(NamedTuple):
    """The trace of one node.

    Attributes:
        node: its number.
        host: its host.
        closed: whether its session ended; otherwise it was killed, or still runs.
        bound_seconds: the largest error of its clock against node 0's, as measured; infinite if
            not measured. If the session did not end, the error was measured only at the start.
        events: in the order of their starts; in seconds of node 0's clock since node 0 began.
        clock: converts seconds of the node's file to these seconds.
    """

    node: int
    host: str
    closed: bool
    bound_seconds: float
    events: tuple[Event, ...]
    clock: Callable[[float], float]

    @property
    def hidden_share(self) -> float:
        """See `jdaso.hidden_share`."""
        return hidden_share(self.events)


class Trace(NamedTuple):
    """The traces of the nodes of a run.

    Attributes:
        nodes: the nodes that have left a file, by number.
        num_nodes: the number of nodes.
        unix_seconds: when node 0 began, by its host's time of day.
    """

    nodes: tuple[NodeTrace, ...]
    num_nodes: int
    unix_seconds: float

    @property
    def missing(self) -> tuple[int, ...]:
        """Nodes without a file."""
        there = {node.node for node in self.nodes}
        return tuple(node for node in range(self.num_nodes) if node not in there)

    @property
    def hidden_share(self) -> float:
        """The mean of `NodeTrace.hidden_share` over nodes."""
        return math.fsum(node.hidden_share for node in self.nodes) / len(self.nodes)


def read(folder: str | Path) -> Trace:
    """Reads the trace in a folder.

    Between a session's start and end a clock is assumed to run evenly: the drift measured at the
    end is spread linearly. Rows that are not complete are left out, and so are earlier runs and
    nodes that took no part in the latest one.

    Args:
        folder: the folder given to ``Session(trace=...)``, or one in which the files of several
            nodes were collected.

    Returns:
        The nodes' events.

    Raises:
        TraceError: there is no trace.

    Example:
        >>> import tempfile, time, jdaso
        >>> folder = tempfile.mkdtemp()
        >>> with jdaso.Session(trace=folder) as session:
        ...     _ = session.timeline.record("step", 0, time.perf_counter())
        >>> [event.name for event in jdaso.traces.read(folder).nodes[0].events]
        ['step']
    """
    files = sorted(local_folder(folder).glob("node-*.jsonl"))
    found = [(rows[0], path, rows) for path in files if (rows := rows_of(path))]
    if not found:
        raise TraceError(
            f"{folder} holds no node-*.jsonl with a trace. Give the folder that was given to "
            "jdaso.Session(trace=...)."
        )
    first = max((about for about, *_ in found), key=lambda about: about["unix_seconds"])
    run = first["num_nodes"], first["unix_seconds"]
    nodes = [
        _read_node(path, rows)
        for about, path, rows in found
        if (about["num_nodes"], about["unix_seconds"]) == run
    ]
    return Trace(tuple(sorted(nodes, key=lambda node: node.node)), *run)


def _read_node(path: Path, rows: list[Row]) -> NodeTrace:
    try:
        about, *rest = rows
        drift = next((row for row in rest if row["kind"] == "clock"), None)
        bound = max(float(x.get("bound_seconds", 0.0)) for x in (about, drift or {}))
        seconds = _clock(drift or {})
        events = sorted(
            (_event(row, seconds) for row in rest if row["kind"] == "event"),
            key=lambda event: (event.begin_seconds, -event.end_seconds),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path} has a row that jdaso did not write: {error!r}.") from error
    return NodeTrace(about["node"], about["host"], drift is not None, bound, tuple(events), seconds)


def _event(row: Row, clock: Callable[[float], float]) -> Event:
    fields = {name: x for name, x in row.items() if name not in ("kind", "begin", "end")}
    return Event(**fields, begin_seconds=clock(row["begin"]), end_seconds=clock(row["end"]))


def _clock(drift: Row) -> Callable[[float], float]:
    """Returns a function from a file's seconds, correct at the start, to node 0's seconds."""
    begin, end = drift.get("begin", 0.0), drift.get("end", 0.0)
    if end <= begin:
        return lambda seconds: seconds
    rate = drift["correction"] / (end - begin)
    return lambda seconds: seconds + rate * (seconds - begin)


def rows_of(path: Path) -> list[Row]:
    """Returns a file's complete rows of its latest trace, the one about the node first."""
    found: list[Row] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(KINDS):
                with contextlib.suppress(ValueError):
                    row = json.loads(line)
                    if row["kind"] == "trace":
                        found = []
                    elif not found:
                        continue
                    found.append(row)
    return found
