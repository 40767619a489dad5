"""Rows of numbers, some still on a device, appended to a file by a thread."""

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

log = logging.getLogger("jdaso")

Row = Mapping[str, Any]
_PAUSE_SECONDS = 0.5


class Writer:
    """Appends JSON lines to a file. Only `flush` waits for a device or a disk.

    A row waits until its numbers are ready, and the rows after it wait too. Each write consists of
    whole lines. Rows that cannot be written are dropped: the first with a warning, and training
    continues.

    Args:
        path: the file; its folder is created.
        on_row: called in the thread with each row that was written.
    """

    def __init__(self, path: Path, on_row: Callable[[Row], None] = lambda row: None):
        self._path, self._on_row = path, on_row
        self._rows: deque[Row] = deque()
        self._lock = threading.Lock()  # guards the attributes below
        self._file: int | None = None
        self._torn = self._warned = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._torn = ends_within_a_line(path)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            self._warn(error)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jdaso-metrics", daemon=True)
        self._thread.start()

    def put(self, row: Row) -> None:
        """Queues a row, to be written when its numbers are ready."""
        self._rows.append(row)

    def put_now(self, row: Row) -> None:
        """Writes a row of plain values before returning: the process may be about to end."""
        with self._lock:
            self._write([*self._take_ready(), row])

    def flush(self, limit_seconds: float) -> None:
        """Writes all rows; numbers that are not ready within the limit become null."""
        until = time.monotonic() + limit_seconds
        while self._rows and time.monotonic() < until:
            with self._lock:
                self._write(self._take_ready())
            if self._rows:
                time.sleep(0.005)
        with self._lock:
            self._write([self._rows.popleft() for _ in range(len(self._rows))])

    def close(self, limit_seconds: float) -> None:
        """Writes the remaining rows and closes the file."""
        self._closing.set()
        self._thread.join(limit_seconds)
        self.flush(limit_seconds)
        with self._lock:
            if self._file is not None:
                os.close(self._file)
            self._file = None

    def _run(self) -> None:
        while not self._closing.wait(_PAUSE_SECONDS):
            with self._lock:
                self._write(self._take_ready())

    def _take_ready(self) -> list[Row]:
        taken = []
        while self._rows and all(is_ready(value) for value in self._rows[0].values()):
            taken.append(self._rows.popleft())
        return taken

    def _write(self, rows: list[Row]) -> None:
        rows = [{name: self._plain(value) for name, value in row.items()} for row in rows]
        if not rows or self._file is None:
            return
        data = "".join(
            json.dumps(row, separators=(",", ":"), default=_other) + "\n" for row in rows
        ).encode()
        data, done = b"\n" * self._torn + data, 0
        try:
            while done < len(data):
                done += os.write(self._file, data[done:])
            self._torn = False
        except OSError as error:
            self._torn = self._torn or done > 0
            self._warn(error)
        for row in rows:
            self._on_row(row)

    def _plain(self, value: Any) -> Any:
        """Returns a value that JSON can hold. A number lost with its step becomes null."""
        if isinstance(value, jax.Array):
            if not is_ready(value):
                return None
            try:
                value = np.asarray(value)
            except Exception as error:  # its step failed, or it was donated
                self._warn(error)
                return None
        return plain(value)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "Metrics are lost: %s cannot be written in full (%s). Training goes on.",
                self._path,
                str(error).partition("\n")[0] or type(error).__name__,
            )


def is_ready(value: Any) -> bool:
    """Returns whether a value needs no waiting; waiting for a deleted one would not help."""
    return not isinstance(value, jax.Array) or value.is_deleted() or value.is_ready()  # pyright: ignore


def plain(value: Any) -> Any:
    """Returns a NumPy scalar as Python's; numbers that JSON lacks by name: "NaN", "Infinity"."""
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


def _other(value: Any) -> Any:
    """Converts values inside lists: numbers of NumPy and JAX; anything else becomes text."""
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
