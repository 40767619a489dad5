"""The first rank of a job to fail, as its supervisor finds it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .guard import Job
from .look import Look
from .reports import AGAIN, ENDS, FAILED, LIVES_ON, RANK_MARK, SAVED, SAVES, THROUGH

_RANK = re.compile(rf"{RANK_MARK}(\d+(?: \(rank \d+\))?) (\d+) (\S+)( {LIVES_ON})?")
_NEWS = re.compile(rf"{RANK_MARK}process (\d+) (\S+) (.*)")

_HELLO_SECONDS, _LATE_HELLO_SECONDS, _FIRST_SECONDS = 1.0, 0.05, 5.0

_DEAD = (  # launchers' messages about a process that failed
    re.compile(rb"PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)"),
    re.compile(rb"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+)"),
)


@dataclasses.dataclass(eq=False)
class _Process:
    """A rank's process.

    Attributes:
        pid: its number, which processes of other hosts may have too.
        host: its host.
        node: its node, or node and rank.
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
        """Describes its failure: it has "died" or "failed"."""
        if not self.node:
            return f"a node {how} first"
        return f"node {self.node} {how} first (process {self.pid} on host {self.host})"


class _Failure(NamedTuple):
    """The failure of a process: its end, its own report, or the launcher's message.

    Attributes:
        process: the process.
        how: "died" or "failed".
        at: time at which this process was notified.
        by_launcher: whether only the launcher's message gives it.
    """

    process: _Process
    how: str
    at: float
    by_launcher: bool = False


class Deaths:
    """Finds which of a job's processes failed or ended first; the launcher ends the others at once.

    A process that fails with an exception reports it. Each rank on this host also holds a
    connection to `path`. When the rank ends, the kernel closes that connection before the
    launcher's pipes, which were opened earlier and may be held open by processes that the rank
    forked. For ranks on other hosts only the launcher's own messages are available; if several
    ranks have failed, the launcher may name one that it ended itself.

    Args:
        path: the socket to listen on.
        job: updated with the ranks that save when asked to stop, and with MPI's files.
        on_news: called by a thread after each change.
    """

    def __init__(self, path: str, job: Job, on_news: Callable[[], None] = lambda: None):
        self._job, self._on_news = job, on_news
        self._processes: list[_Process] = []
        self._ranks: dict[int, tuple[int, _Process, socket.socket]] = {}  # by file descriptor
        self._failures: list[_Failure] = []  # the first one first
        self._since = 0.0  # start of the last launch of the job, which may be a script with several
        self.saved = self.lives_on = self._ends = False
        self.dead: dict[int, tuple[float, set[int]]] = {}
        """Times at which ranks of this host failed, by process, with those that then waited."""
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(path)
        self._server.listen(1024)
        self._wake, self._waker = os.pipe()
        self._read_all = threading.Event()
        self._poll = select.epoll()  # reports events in their order
        for source in (self._server.fileno(), self._wake):
            self._poll.register(source, select.EPOLLIN)
        self._thread = threading.Thread(target=self._watch, name="jdaso-deaths", daemon=True)
        self._thread.start()

    def look(self) -> Callable[[bytes], bytes]:
        """Returns a filter that removes the marks from a stream and keeps the user's bytes."""
        return Look(self._take_mark, self._take_line)

    @property
    def came_through(self) -> bool:
        """Returns whether a rank has closed its sessions normally, and has not failed since."""
        return any(x.through and x.last >= self._since for x in self._processes)

    @property
    def connected(self) -> set[int]:
        """Processes of this host's ranks that still run."""
        return {pid for pid, _, _ in list(self._ranks.values())}

    def catch_up(self) -> None:
        """Returns once all reports sent so far by ranks of this host have been read."""
        self._read_all.clear()
        self._wake_thread()
        self._read_all.wait(_FIRST_SECONDS)

    def first(self) -> str | None:
        """The first failure, once the job has ended; closes all connections.

        Processes that had closed their sessions before they ended come last: the other ranks may
        not have needed them.
        """
        self._end_thread()
        self._thread.join(_FIRST_SECONDS)
        for source in (self._poll, self._server, *(x for _, _, x in self._ranks.values())):
            source.close()
        os.close(self._wake)
        found = [failure for failure in self._failures if self._counts(failure)]
        found.sort(key=lambda failure: (failure.process.through, failure.by_launcher))
        return found[0].process.failed_first(found[0].how) if found else None

    def _counts(self, failure: _Failure) -> bool:
        """Returns whether a failure is of the last launch, and not handled by the program.

        All ranks of a launch are started before one of them has a session.
        """
        process = failure.process
        return not process.in_order and failure.at >= max(self._since, process.since)

    def _wake_thread(self) -> None:
        os.write(self._waker, b"x")

    def _end_thread(self) -> None:
        os.close(self._waker)

    def _take_mark(self, mark: bytes) -> None:
        """Reads a report from a rank on another host."""
        text = mark.decode(errors="replace").rstrip("\r\n")
        if rank := _RANK.fullmatch(text):
            self._note_rank(rank)
        elif news := _NEWS.fullmatch(text):
            pid, host, said = news.groups()
            process = self._find(int(pid), host) or _Process(int(pid), host, node="")
            self._hear(process, said, here=False)
        self._on_news()

    def _take_line(self, line: bytes) -> None:
        """Reads a line of output, which may be the launcher's."""
        for found in filter(None, (pattern.search(line) for pattern in _DEAD)):
            rank, pid = found.groupdict().get("rank"), int(found["pid"])
            host = found["host"].decode(errors="replace")
            process = self._find(pid, host)
            if process is None and rank is not None:
                process = _Process(pid, host, rank.decode())
            if process is not None:
                self._failures.append(_Failure(process, "died", _now(), by_launcher=True))

    def _find(self, pid: int, host: str) -> _Process | None:
        """The process of a rank, whose host may have another name for the launcher."""
        found = [process for process in reversed(self._processes) if process.pid == pid]
        only = found[0] if len(found) == 1 else None
        return next((process for process in found if process.host == host), only)

    def _note_rank(self, rank: re.Match[str]) -> _Process:
        node, pid, host, lives_on = rank.groups()
        self.lives_on |= bool(lives_on)
        self._job.note_rank()
        self._processes.append(_Process(int(pid), host, node))
        return self._processes[-1]

    def _watch(self) -> None:
        """Reads reports until `first` asks for the end, and then those that were sent before."""
        asked, limit = False, float("inf")
        while time.monotonic() < limit:
            events = self._poll.poll(0 if asked else -1)
            if not events:  # all reports sent before the request have been read
                asked = False
                self._read_all.set()
                if self._ends:
                    return
            for source, _ in events:
                if source == self._wake:
                    asked = True
                    if not os.read(self._wake, 1):
                        self._ends, limit = True, time.monotonic() + _FIRST_SECONDS / 2
                        self._poll.unregister(self._wake)
                elif source == self._server.fileno():
                    self._welcome()
                else:
                    self._attend(source)
            self._on_news()

    def _attend(self, source: int) -> None:
        """Reads all reports of a connected rank, and notices its end."""
        own, process, connection = self._ranks[source]
        try:
            while said := connection.recv(1024):
                self._hear(process, said.decode(errors="replace"), here=True, own=own)
        except BlockingIOError:
            return
        except OSError:
            pass  # the rank has ended
        self._poll.unregister(source)
        del self._ranks[source]
        connection.close()
        self._job.note_saver(own, [])
        process.last = _now()
        if not process.in_order:
            self._failures.append(_Failure(process, "died", process.last))
            self.dead[own] = time.monotonic(), set() if process.through else self.connected

    def _hear(self, process: _Process, said: str, *, here: bool, own: int = 0) -> None:
        """Handles one report of a rank; `own` is its process id as this host's kernel sees it."""
        what, *rest = said.split() or [""]
        process.last = _now()
        if what == THROUGH:
            process.through = True
        elif what == AGAIN:
            process.through, process.since = False, process.last
        elif what == FAILED:
            process.through = False
            self._failures.append(_Failure(process, "failed", process.last))
        elif what == ENDS:
            process.ends = True
        elif what == SAVED:
            self.saved = True
        elif what == SAVES:
            numbers = [int(number) for number in rest if number.isdecimal()]
            taken = [number for number in numbers if number in signal.valid_signals()]
            if not here:
                self._job.note_savers_elsewhere(taken)
            else:
                self._job.note_saver(own, taken)

    def _welcome(self) -> None:
        """Accepts a rank of this host, or a nested supervisor that reports only a saved job."""
        with contextlib.suppress(OSError):
            connection, _ = self._server.accept()
            connection.settimeout(_LATE_HELLO_SECONDS if self._ends else _HELLO_SECONDS)
            said = connection.recv(1024).decode(errors="replace")
            connection.setblocking(False)
            if rank := _RANK.fullmatch(said):
                process = self._note_rank(rank)
                asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                own = struct.unpack("3i", asked)[0] or int(rank[2])  # differs in a container
                self._since = max(self._since, _started(own))
                self._job.note_files(own)
                self._ranks[connection.fileno()] = own, process, connection
                # Edge-triggered: an old report must not put a rank ahead of one that ended first.
                self._poll.register(connection, select.EPOLLIN | select.EPOLLET)
            elif said == SAVED:
                self.saved = True


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
