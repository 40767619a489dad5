"""The profile of a node from `jax.profiler`, on the clock of the node's trace."""

from __future__ import annotations

import gzip
import json
import statistics
import zlib
from pathlib import Path
from typing import Any

from .._jax.debug import ANNOTATION
from ._chrome_format import Row
from ._read import Trace, TraceError


class Profile:
    """One file of `jax.profiler.trace`.

    While a trace is recorded, each step adds its time to a profile that is being recorded; these
    times show the profile's clock and its node.

    Args:
        path: a ``*.trace.json.gz``.

    Raises:
        TraceError: the file cannot be read, or contains no such time.
    """

    def __init__(self, path: Path):
        try:
            self._rows = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        except (OSError, EOFError, zlib.error, ValueError, KeyError) as error:
            raise TraceError(f"{path} is not a profile of jax.profiler.trace ({error}).") from error
        times = [row for row in self._rows if row.get("name") == ANNOTATION and "args" in row]
        if not times:
            raise TraceError(
                f"{path} has no timestamps from jdaso, so its clock is unknown. Profile at least "
                "one step while a jdaso.Session(trace=...) is open."
            )
        self.node = int(times[0]["args"]["node"])
        offsets = [float(row["args"]["nanoseconds"]) / 1e3 - row["ts"] for row in times]
        self._offset = statistics.median(offsets)

    def rows(self, trace: Trace, first_process: int) -> list[Row]:
        """The profile's rows, on the trace's clock.

        Args:
            trace: contains the trace of the profile's node.
            first_process: processes of Chrome's trace may have numbers from this one on.

        Raises:
            TraceError: the profile belongs to a node of another run.
        """
        nodes = {node.node: node for node in trace.nodes}
        if self.node not in nodes:
            raise TraceError(f"A profile belongs to node {self.node}, which left no trace.")
        processes: dict[int, int] = {}
        rows: list[Row] = []
        for row in self._rows:
            if "ph" not in row:
                continue
            process = processes.setdefault(row["pid"], first_process + len(processes))
            row = {**row, "pid": process}
            if "ts" in row:
                seconds = 1e-6 * (row["ts"] + self._offset)
                row["ts"] = round(1e6 * nodes[self.node].clock(seconds), 3)
            rows.append(self._named(row))
        return rows

    def _named(self, row: Row) -> Row:
        """Adds the node's name to process names, and sorts the processes after the nodes."""
        about: dict[str, Any] = row.get("args", {})
        if row["ph"] != "M":
            return row
        if row["name"] == "process_name":
            return {**row, "args": {"name": f"node {self.node}, JAX's profile: {about['name']}"}}
        if row["name"] == "process_sort_index":
            return {**row, "args": {"sort_index": row["pid"]}}
        return row


def profiles_in(folder: str | Path) -> list[Profile]:
    """The newest profile of each node in a folder of `jax.profiler.trace`.

    Raises:
        TraceError: there is none, or one cannot be matched to a trace.
    """
    paths = sorted(Path(folder).glob("**/*.trace.json.gz"))
    if not paths:
        raise TraceError(
            f"{folder} holds no *.trace.json.gz. Give the folder that was given to "
            "jax.profiler.trace(...)."
        )
    found = {(profile := Profile(path)).node: profile for path in paths}
    return [found[node] for node in sorted(found)]
