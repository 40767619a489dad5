"""Writes a node's events to a file while it runs, so that a killed process leaves a trace.

The file is a JSON list in Chrome's trace format, which stays unterminated until the session closes;
the format allows that. A thread writes once a second; steps only enqueue their events.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from .._compat import annotate
from .._launch.paths import local_folder
from .._nodes.control import Control
from ._chrome_format import ABOUT, CLOCK, Rows, text
from ._clock_offset import Offset, measure
from ._timeline import Event, Timeline

log = logging.getLogger("jdaso")

_WRITE_SECONDS = 1.0
_MOST_EVENTS = 1 << 17
"""Events held back while a file system hangs; after that the oldest are dropped."""

_START_SECONDS, _END_SECONDS = 10.0, 2.0
"""Limits for comparing the nodes' clocks at the begin and at the end."""


class Recorder:
    """The trace of one node, from its session's begin to its `close`.

    Times are microseconds of node 0's clock since node 0 began, as far as the clocks are known at
    the begin; the last row gives their drift since then.

    On failure: a failed write is logged once, and nothing more is recorded.

    Args:
        folder: the folder for ``trace-00003.json`` of node 3; created if missing. A file from an
            earlier run is kept as ``trace-00003.json.old``.
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
        self._rows = Rows(node, self._microseconds)
        self._queue: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self.path = local_folder(folder) / f"trace-{node:05d}.json"
        self._file: Any = None
        self._stop = threading.Event()
        head = self._rows.named(
            ABOUT,
            node=node,
            num_nodes=nodes,
            host=control.topology.host,
            unix_seconds=unix,
            bound_seconds=_finite(self.start.bound_seconds),
            **about,
        )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for path in [self.path, *(_of_others(self.path, nodes) if node == 0 else [])]:
                if path.exists():
                    path.replace(f"{path}.old")
            self._file = self.path.open("w", encoding="utf-8")
            self._file.write("[\n" + text([head, *self._rows.process(control.topology.host)]))
            self._file.flush()
        except OSError as error:
            self._give_up(error)
            return
        timeline.copy_to(self._queue.append)
        self._thread = threading.Thread(target=self._run, name="jdaso-recorder", daemon=True)
        self._thread.start()

    def close(self, *, failed: bool) -> None:
        """Completes the file. Clocks are compared once more unless something has failed."""
        end = None if failed else self._measure(_END_SECONDS)
        if self._file is None:
            return
        self._timeline.copy_to(None)
        self._stop.set()
        self._thread.join(timeout=10 * _WRITE_SECONDS)
        if self._thread.is_alive() or self._file is None:
            return  # the file system hangs or has failed; this was already logged
        about: dict[str, Any] = {}
        if end is not None and self.start.bound_seconds < float("inf"):
            about = {
                "begin_us": self._microseconds(self.start.at_seconds),
                "end_us": self._microseconds(end.at_seconds),
                "correction_us": 1e6 * (end.seconds - self.start.seconds),
                "bound_seconds": end.bound_seconds,
            }
        last = text([self._rows.named(CLOCK, **about)]).rstrip(",\n")
        try:
            self._file.write(f"{last}\n]\n")
            self._file.close()
        except OSError as error:
            self._give_up(error)

    def annotate(self) -> None:
        """Adds the time to the profile that JAX may be recording, to identify its clock."""
        annotate(self._control.topology.node, self._microseconds(time.perf_counter()))

    def _microseconds(self, seconds: float) -> float:
        return 1e6 * (seconds + self.start.seconds - self._zero)

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

    def _run(self) -> None:
        while self._file is not None:
            last = self._stop.wait(_WRITE_SECONDS)
            self.annotate()
            try:
                self._write()
            except Exception as error:  # a full disk, or an event that cannot be written
                self._give_up(error)
            if last:
                return

    def _write(self) -> None:
        """Writes the enqueued events, and makes them visible to readers."""
        lines = []
        while self._queue:
            lines.append(text(self._rows.of(self._queue.popleft())))
        self._file.write("".join(lines))
        self._file.flush()

    def _give_up(self, error: Exception) -> None:
        self._timeline.copy_to(None)
        self._file = None
        self._queue.clear()
        log.error(
            "%s The trace cannot be written to %s (%s). The run goes on without it; give "
            "Session(trace=...) a folder that this node can write to.",
            self._control.topology.prefix(),
            self.path,
            error,
        )


def _of_others(path: Path, nodes: int) -> list[Path]:
    """Files that an earlier run with more nodes left beside this one."""
    numbered = ((other, other.stem.partition("-")[2]) for other in path.parent.glob("trace-*.json"))
    return [other for other, number in numbered if number.isdecimal() and int(number) >= nodes]


def _finite(seconds: float) -> float | None:
    """Returns None for infinity, which JSON does not have."""
    return seconds if seconds < float("inf") else None
