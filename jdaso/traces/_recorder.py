"""Records a node's events while it runs, so that a killed process leaves a trace."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

from .._jax.debug import annotate
from .._nodes.control import Control
from ._clock_offset import Offset, measure
from ._timeline import Event, Timeline
from ._writer import Row, Writer, own_path

log = logging.getLogger("jdaso")

_START_SECONDS, _END_SECONDS = 10.0, 2.0
"""Limits for comparing the nodes' clocks at the start and at the end."""

_CLOSE_SECONDS = 10.0


class TraceRecorder:
    """The trace of one node, from its session's start to its `close`; `jdaso.metrics` adds rows.

    In a node of several ranks, that of the first.

    Times are seconds of node 0's clock since node 0 began, as far as the clocks are known at the
    start; the last row gives their drift since then.

    On failure: the first failed write is logged, and training goes on.

    Args:
        folder: the folder for ``node-00003.jsonl`` of node 3; created if missing. Later runs
            append to the file.
        control: the nodes; all create their recorders together.
        timeline: the timeline whose events are recorded.
        about: facts about the session, for readers.
    """

    def __init__(
        self, folder: str | os.PathLike[str], control: Control, timeline: Timeline, **about: Any
    ):
        node, nodes = control.topology.node, control.topology.num_nodes
        self._control, self._timeline = control, timeline
        self._comm = control.duplicate().comm if nodes > 1 else None
        start = self._measure(_START_SECONDS)
        if start is None:
            log.warning(
                "%s The clocks of the nodes could not be compared: the times in this node's trace "
                "are of its own clock.",
                control.topology.prefix(),
            )
        self.start = start or Offset(bound_seconds=float("inf"))
        mine = json.dumps((time.perf_counter(), time.time()))
        self._zero, unix = json.loads(control.everyone("begin a trace", mine)[0])
        self.path = own_path(folder, control.topology)
        self.writer = Writer(self.path, self.annotate, self._row)
        self.writer.put_now(
            {
                "kind": "trace",
                "node": node,
                "num_nodes": nodes,
                "host": control.topology.host,
                "unix_seconds": unix,
                "bound_seconds": self.start.bound_seconds,
                **about,
            }
        )
        timeline.copy_to(self.writer.put_event)

    def close(self, *, failed: bool) -> None:
        """Completes the trace. Clocks are compared once more unless something has failed."""
        end = None if failed else self._measure(_END_SECONDS)
        self._timeline.copy_to(None)
        about: Row = {}
        if end is not None and self.start.bound_seconds < float("inf"):
            about = {
                "begin": self._seconds(self.start.at_seconds),
                "end": self._seconds(end.at_seconds),
                "correction": end.seconds - self.start.seconds,
                "bound_seconds": end.bound_seconds,
            }
        self.writer.put({"kind": "clock", **about})
        self.writer.close(_CLOSE_SECONDS)

    def annotate(self) -> None:
        """Adds the time to the profile that JAX may be recording, to identify its clock."""
        annotate(self._control.topology.node, 1e6 * self._seconds(time.perf_counter()))

    def _row(self, event: Event) -> Row:
        fields = {name: x for name, x in event._asdict().items() if x is not None}
        begin, end = (self._seconds(fields.pop(f"{x}_seconds")) for x in ("begin", "end"))
        return {"kind": "event", **fields, "begin": round(begin, 9), "end": round(end, 9)}

    def _seconds(self, seconds: float) -> float:
        return seconds + self.start.seconds - self._zero

    def _measure(self, limit_seconds: float) -> Offset | None:
        """Measures this node's offset from node 0's clock; None if that is not possible."""
        if self._comm is None:
            return Offset(time.perf_counter())
        known = self._control.known

        def check() -> None:
            if known.failure is not None or known.dead:
                raise TimeoutError("a node has gone")

        try:
            return measure(self._comm, check, limit_seconds)
        except Exception as error:  # including MPI's errors: a trace must not harm the training
            log.debug("clocks were not compared: %s", error)
            return None
