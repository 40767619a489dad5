"""The ranks of a job as they report themselves, and the first of them to fail; no sockets."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import NamedTuple

from .reports import AGAIN, ENDS, FAILED, SAVED, THROUGH


@dataclasses.dataclass(eq=False)
class Process:
    """A rank's process.

    Attributes:
        pid: its number, which processes of other hosts may have too.
        host: its host.
        node: its node, or node and rank; empty if unknown.
        through: whether it has closed all its sessions, and has not failed since.
        ends: whether Python has begun to end it.
        since: time from which its failures count; earlier ones were handled by the program.
        last: time of its last report, or of its end.
    """

    pid: int
    host: str
    node: str
    through: bool = False
    ends: bool = False
    since: float = 0.0
    last: float = 0.0

    @property
    def in_order(self) -> bool:
        """Returns whether the end of the process is no failure."""
        return self.through and self.ends

    def failed_first(self, how: str) -> str:
        """Describes its failure: it has "ended" or "failed"."""
        if not self.node:
            return f"a node {how} first"
        return f"node {self.node} {how} first (process {self.pid} on host {self.host})"


class _Failure(NamedTuple):
    """The failure of a process.

    Attributes:
        process: the process.
        how: "ended" or "failed".
        at: when the supervisor was notified.
        by_launcher: whether only the launcher's message gives it.
    """

    process: Process
    how: str
    at: float
    by_launcher: bool


class Failures:
    """The processes of a job's ranks, and their failures in the order of their reports.

    A job may be a script that starts its launcher several times. All ranks of a launch are started
    before one of them has a session: what was reported before a rank was started is of an earlier
    launch. Several threads may call the methods; each only adds facts.
    """

    def __init__(self):
        self.processes: list[Process] = []
        self._failures: list[_Failure] = []
        self._since = 0.0  # start of the newest rank
        self._saved: set[Process] = set()  # in the last launch, and ended or ending since

    def add(self, pid: int, host: str, node: str) -> Process:
        """Adds a rank that has reported itself."""
        self._saved.clear()
        self.processes.append(Process(pid, host, node))
        return self.processes[-1]

    def find(self, pid: int, host: str) -> Process | None:
        """The process of a rank, whose host may have another name for the launcher."""
        found = [process for process in reversed(self.processes) if process.pid == pid]
        only = found[0] if len(found) == 1 else None
        return next((process for process in found if process.host == host), only)

    def note_start(self, pid: int) -> None:
        """Notes when a rank of this host was started; `pid` is its number on this host."""
        self._since = max(self._since, _started(pid))

    def note_report(self, process: Process, what: str) -> None:
        """Notes a rank's report of its state."""
        process.last = _now()
        if what == THROUGH:
            process.through = True
        elif what == AGAIN:
            process.through, process.since = False, process.last
            self._saved.discard(process)
        elif what == SAVED:
            self._saved.add(process)
        elif what == FAILED:
            process.through = False
            self._failures.append(_Failure(process, "failed", process.last, by_launcher=False))
        elif what == ENDS:
            process.ends = True

    def note_end(self, process: Process) -> None:
        """Notes that a rank of this host has ended."""
        process.last = _now()
        self._failures.append(_Failure(process, "ended", process.last, by_launcher=False))

    def note_launchers_word(self, pid: int, host: str, rank: str | None) -> None:
        """Notes that the launcher reports a failed process, which may be no rank."""
        process = self.find(pid, host)
        if process is None and rank is not None:
            process = Process(pid, host, rank)
        if process is not None:
            self._failures.append(_Failure(process, "ended", _now(), by_launcher=True))

    def note_saved_job(self) -> None:
        """Notes that a job within this one was asked to stop, and has saved."""
        self._saved.add(Process(0, "", ""))

    @property
    def saved(self) -> bool:
        """Returns whether the last launch was asked to stop, and has saved."""
        return bool(self._saved)

    @property
    def came_through(self) -> bool:
        """Returns whether a rank has closed its sessions normally, and has not failed since."""
        return any(x.through and x.last >= self._since for x in self.processes)

    def first(self) -> str | None:
        """Describes the first failure.

        Processes that had closed their sessions before they ended come last: the other ranks may
        not have needed them.
        """
        found = [failure for failure in self._failures if self._counts(failure)]
        found.sort(key=lambda failure: (failure.process.through, failure.by_launcher))
        return found[0].process.failed_first(found[0].how) if found else None

    def _counts(self, failure: _Failure) -> bool:
        """Returns whether a failure is of the last launch, and not handled by the program."""
        process = failure.process
        return not process.in_order and failure.at >= max(self._since, process.since)


def _now() -> float:
    """Seconds since the boot of this machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _started(pid: int) -> float:
    """When a process was started, in seconds since the boot; 0 if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return 0.0
    return int(text.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
