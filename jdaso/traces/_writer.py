"""A node's file: rows of metrics, some still on a device, and events of a trace.

One JSON object a line. A thread appends them, so that a killed process leaves all but the last.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._launch.paths import local_folder
from .._mpi.requests import poll
from .._mpi.topology import Topology

log = logging.getLogger("jdaso")

Row = Mapping[str, Any]
_PAUSE_SECONDS = 0.5
_NOW_SECONDS = 5.0
"""The wait for a write that is to be done now: a file system that hangs holds up nothing longer."""
_MOST_EVENTS = 1 << 17
"""Events held back while a file system hangs; after that the oldest are dropped."""


def path_of(folder: str | os.PathLike[str], node: int) -> Path:
    """Returns the path of a node's file in the folder of a run."""
    return local_folder(folder) / f"node-{node:05}.jsonl"


def own_path(folder: str | os.PathLike[str], topology: Topology) -> Path:
    """Returns the path of this rank's file: its node's, or none (``/dev/null``).

    In a node of several ranks only the first records, since all go through the same steps.
    """
    return path_of(folder, topology.node) if topology.place == 0 else Path(os.devnull)


class Writer:
    """Appends JSON lines to a file, in a thread of its own; all waits for it have a limit.

    A row waits until its numbers are ready, and the rows after it wait too; events do not. Each
    write consists of whole lines. Rows that cannot be written are dropped, the first with a
    warning, and training continues.

    Args:
        path: the file; its folder is created.
        on_turn: called by the thread when it looks for rows by itself, twice a second.
        row_of: makes the row of an event, in the thread.

    Attributes:
        path: the file.
    """

    def __init__(
        self,
        path: Path,
        on_turn: Callable[[], None] = lambda: None,
        row_of: Callable[[Any], Row] = dict,
    ):
        self.path, self._on_turn, self._row_of = path, on_turn, row_of
        self._events: deque[Any] = deque(maxlen=_MOST_EVENTS)
        self._sink: Callable[[Row], None] = lambda row: None
        self._rows: deque[Row] = deque()
        self._urgent: deque[tuple[Row | None, threading.Event]] = deque()
        self._hangs = False  # the last write was not done in time
        self._regardless = False  # numbers that are not ready become null
        self._file: int | None = None
        self._torn = self._warned = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._torn = ends_within_a_line(path)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            self._warn(error)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="jdaso-recorder", daemon=True)
        self._thread.start()

    def copy_to(self, sink: Callable[[Row], None]) -> None:
        """Passes each row that is written from here on to `sink`."""
        self._sink = sink

    def put_event(self, event: Any) -> None:
        """Queues an event, of which `row_of` makes a row, without waiting for a device."""
        self._events.append(event)

    def put(self, row: Row) -> None:
        """Queues a row, to be written when its numbers are ready."""
        self._rows.append(row)

    def put_now(self, row: Row) -> None:
        """Writes a row of plain values before returning: the process may be about to end.

        Waits 5 seconds at most; a file system that hangs takes the row later.
        """
        self._now(row)

    def flush(self, limit_seconds: float) -> None:
        """Writes all rows; numbers that are not ready within the limit become null."""
        poll(self._write_what_is_ready, limit_seconds=limit_seconds)
        self._regardless = True
        self._now(None)
        self._regardless = False

    def close(self, limit_seconds: float) -> None:
        """Writes the remaining rows and closes the file."""
        self.flush(limit_seconds)
        self._closing.set()
        self._wake.set()
        self._thread.join(0.05 if self._hangs else _NOW_SECONDS)

    def _write_what_is_ready(self) -> bool:
        """Lets the thread write; returns whether that was all, or all that it can write now."""
        self._now(None)
        return not self._rows or self._hangs

    def _now(self, row: Row | None) -> None:
        """Lets the thread write what is ready, and a row; waits for that, but for a hang once."""
        written = threading.Event()
        self._urgent.append((row, written))
        self._wake.set()
        end = time.monotonic() + (0.0 if self._hangs else _NOW_SECONDS)
        while not written.wait(0.05) and self._thread.is_alive() and time.monotonic() < end:
            pass
        self._hangs = not written.is_set()

    def _run(self) -> None:
        ends = False
        while not ends:
            by_itself = not self._wake.wait(_PAUSE_SECONDS)
            self._wake.clear()
            ends = self._closing.is_set()
            try:
                if by_itself:
                    self._on_turn()
                self._write_ready()
            except Exception as error:  # the rows of this turn are lost, and not the thread
                self._warn(error)
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _write_ready(self) -> None:
        """Writes the rows that are ready, then those that are urgent."""
        urgent = [self._urgent.popleft() for _ in range(len(self._urgent))]
        try:
            self._write([*self._take_ready(), *(row for row, _ in urgent if row is not None)])
        finally:
            for _, written in urgent:
                written.set()

    def _take_ready(self) -> list[Row]:
        taken = [self._row_of(self._events.popleft()) for _ in range(len(self._events))]
        while self._rows and (self._regardless or all(map(is_ready, self._rows[0].values()))):
            taken.append(self._rows.popleft())
        return taken

    def _write(self, rows: list[Row]) -> None:
        rows = [{name: self._plain(value) for name, value in row.items()} for row in rows]
        lines = [line for line in map(self._line, rows) if line]
        if not lines or self._file is None:
            return
        data = "".join(lines).encode()
        data, done = b"\n" * self._torn + data, 0
        try:
            while done < len(data):
                done += os.write(self._file, data[done:])
            self._torn = False
        except OSError as error:
            self._torn = self._torn or done > 0
            self._warn(error)
        for row in rows:
            self._sink(row)

    def _line(self, row: Row) -> str:
        """A row as JSON; nothing if it has a value that JSON does not know."""
        try:
            return json.dumps(row, separators=(",", ":"), default=_other) + "\n"
        except (TypeError, ValueError) as error:
            self._warn(error)
            return ""

    def _plain(self, value: Any) -> Any:
        """Returns a value that JSON can hold. A number lost with its step becomes null."""
        if isinstance(value, jax.Array):
            if not is_ready(value):
                return None
            try:
                value = np.asarray(value)
            except Exception as error:  # its step failed, or the array was donated
                self._warn(error)
                return None
        return plain(value)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "Rows are lost: %s cannot be written in full (%s). Training goes on. Give a folder "
                "to which this node can write.",
                self.path,
                str(error).partition("\n")[0] or type(error).__name__,
            )


def is_ready(value: Any) -> bool:
    """Returns whether a value needs no waiting; waiting for a deleted one would not help."""
    return not isinstance(value, jax.Array) or value.is_deleted() or value.is_ready()  # pyright: ignore


def plain(value: Any) -> Any:
    """Returns a NumPy scalar as Python's; numbers that JSON lacks as names: "NaN", "Infinity".

    Also inside tables and lists.
    """
    if isinstance(value, dict | list | tuple):
        return _within(value)
    if isinstance(value, np.ndarray | np.generic):
        value = np.asarray(value).reshape(())
        if value.dtype.kind not in "biu" and value.dtype.itemsize <= 4:
            value = float(str(value.astype(np.float32)))  # the shortest that float32 reads back
        else:
            value = value.tolist()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _within(value: Any) -> Any:
    """Returns a value of a table or a list; true and false stay what they are."""
    if isinstance(value, dict):
        return {name: _within(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_within(x) for x in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    value = value if isinstance(value, float) else _other(value)
    return plain(value) if isinstance(value, float) else value


def _other(value: Any) -> Any:
    """Converts other values: numbers of NumPy and JAX; anything else becomes text."""
    try:
        return value.item()
    except Exception:
        return str(value)


def ends_within_a_line(path: Path) -> bool:
    """Returns whether the process that wrote a file ended in the middle of a row."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
