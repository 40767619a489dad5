"""Reads the traces of nodes, on node 0's clock."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .._launch.paths import local_folder
from ._chrome_format import ABOUT, CLOCK, Row, event_of
from ._timeline import Event, hidden_share


class TraceError(ValueError):
    """A folder contains no trace, or a file is not a trace."""


class NodeTrace(NamedTuple):
    """The trace of one node.

    Attributes:
        node: its number.
        host: its host.
        closed: whether its session ended; otherwise it was killed, or still runs.
        bound_seconds: the largest error of its clock against node 0's, as measured; infinite if
            it was not measured. If the session did not end, it was measured only at the begin.
        events: in the order of their begin; in seconds of node 0's clock since node 0 began.
        clock: converts microseconds of the node's file to these seconds.
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

    Between a session's begin and end a clock is assumed to run evenly: the drift measured at the
    end is spread linearly. Files that were never closed are read up to their last complete row.

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
    paths = sorted(local_folder(folder).glob("trace-*.json"))
    paths = [path for path in paths if path.stat().st_size] or paths  # empty on a full disk
    if not paths:
        raise TraceError(
            f"{folder} holds no trace-*.json. Give the folder that was given to "
            "jdaso.Session(trace=...)."
        )
    found = [_read_node(path) for path in paths]
    runs = {(about["num_nodes"], about["unix_seconds"]) for about, _ in found}
    if len(runs) > 1:
        raise TraceError(
            f"The files in {folder} are of {len(runs)} different runs. Give each run its own "
            f"folder; here remove the older files. The older {_older(paths, found)}."
        )
    nodes = sorted((node for _, node in found), key=lambda node: node.node)
    return Trace(tuple(nodes), *runs.pop())


def _older(paths: list[Path], found: list[tuple[Row, NodeTrace]]) -> str:
    newest = max(about["unix_seconds"] for about, _ in found)
    names = [p.name for p, (a, _) in zip(paths, found, strict=True) if a["unix_seconds"] < newest]
    return f"are {', '.join(names)}" if len(names) > 1 else f"is {names[0]}"


def _read_node(path: Path) -> tuple[Row, NodeTrace]:
    try:
        return _node_of(path, list(rows_of(path)))
    except (KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{path} has a row that jdaso did not write: {error!r}.") from error


def _node_of(path: Path, rows: list[Row]) -> tuple[Row, NodeTrace]:
    named = {row["name"]: row["args"] for row in rows if row["ph"] == "M"}
    about = named.get(ABOUT)
    if about is None:
        raise TraceError(
            f"{path} is no trace of jdaso: it does not begin with a row about its node."
        )
    drift = named.get(CLOCK, {})
    bounds = [x.get("bound_seconds", 0.0) for x in (about, drift)]
    bound = math.inf if None in bounds else max(bounds)
    seconds = _clock(drift)
    events = sorted(
        (event_of(row, seconds) for row in rows if row["ph"] == "X"),
        key=lambda event: (event.begin_seconds, -event.end_seconds),
    )
    closed = CLOCK in named
    return about, NodeTrace(about["node"], about["host"], closed, bound, tuple(events), seconds)


def _clock(drift: Row) -> Callable[[float], float]:
    """Returns a function from a file's microseconds, right at the begin, to node 0's seconds."""
    begin, end = drift.get("begin_us", 0.0), drift.get("end_us", 0.0)
    if end <= begin:
        return lambda microseconds: 1e-6 * microseconds
    rate = drift["correction_us"] / (end - begin)
    return lambda microseconds: 1e-6 * (microseconds + rate * (microseconds - begin))


def rows_of(path: Path) -> Iterator[Row]:
    """The complete rows of a file; everything from the first incomplete row on is left out."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            line = line.strip().rstrip(",")
            if line in ("[", "]", ""):
                continue
            try:
                row = json.loads(line)
            except ValueError:
                return
            if not isinstance(row, dict) or "ph" not in row:
                return
            yield row
