"""Reads the traces of nodes, on node 0's clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .._launch.paths import local_folder
from ._chrome_format import Row
from ._file import NodeFile, read_file
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
        damaged: rows that are left out, as "node-00003.jsonl, line 17: why".
    """

    nodes: tuple[NodeTrace, ...]
    num_nodes: int
    unix_seconds: float
    damaged: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """Nodes without a file."""
        there = {node.node for node in self.nodes}
        return tuple(node for node in range(self.num_nodes) if node not in there)

    @property
    def hidden_share(self) -> float:
        """The mean of `NodeTrace.hidden_share` over nodes."""
        return math.fsum(node.hidden_share for node in self.nodes) / len(self.nodes)


def read(folder: str | Path, steps: range | None = None) -> Trace:
    """Reads the trace in a folder.

    Between a session's start and end a clock is assumed to run evenly: the drift measured at the
    end is spread linearly. Damaged rows are left out and named in `Trace.damaged`. Earlier runs are
    left out, and nodes that took no part in the latest run, which is that of the first node.

    Args:
        folder: the folder given to ``Session(trace=...)``, or one in which the files of several
            nodes were collected.
        steps: events of these steps alone are read, as in ``range(90_000, 90_100)``: those of all
            steps of a long run may not fit into memory.

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
    paths = sorted(local_folder(folder).glob("node-*.jsonl"))
    files = [read_file(path, steps) for path in paths]
    damaged = tuple(text for file in files for text in file.damaged)
    found = [(file.about, file) for file in files if file.about is not None]
    if not found:
        rows = f" ({len(damaged)} rows are damaged, as {damaged[0]})" if damaged else ""
        raise TraceError(
            f"{folder} holds no node-*.jsonl with a trace{rows}. Give the folder that was given to "
            "jdaso.Session(trace=...)."
        )
    first, _ = min(found, key=lambda pair: pair[0]["node"])  # takes part in every run
    run = first["num_nodes"], first["unix_seconds"]
    nodes = [
        _node_of(about, file)
        for about, file in found
        if (about["num_nodes"], about["unix_seconds"]) == run
    ]
    return Trace(tuple(sorted(nodes, key=lambda node: node.node)), *run, damaged)


def _node_of(about: Row, file: NodeFile) -> NodeTrace:
    clock = _clock(file.drift)
    bound = max(about["bound_seconds"], file.drift.get("bound_seconds", 0.0))
    events = [
        x._replace(begin_seconds=clock(x.begin_seconds), end_seconds=clock(x.end_seconds))
        for x in file.events
    ]
    events.sort(key=lambda event: (event.begin_seconds, -event.end_seconds))
    return NodeTrace(about["node"], about["host"], file.closed, bound, tuple(events), clock)


def _clock(drift: Row) -> Callable[[float], float]:
    """Returns a function from a file's seconds, correct at the start, to node 0's seconds."""
    begin, end = drift.get("begin", 0.0), drift.get("end", 0.0)
    if end <= begin:
        return lambda seconds: seconds
    rate = drift["correction"] / (end - begin)
    return lambda seconds: seconds + rate * (seconds - begin)
