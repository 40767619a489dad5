"""Listens to the ranks of a job, and finds the first of them to fail."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable

from .failures import Failures, Process
from .guard import Job
from .look import Look
from .reports import LIVES_ON, PROGRESSED, RANK_MARK, SAVED, SAVES

_RANK = re.compile(rf"{RANK_MARK}(\d+(?: \(rank \d+\))?) (\d+) (\S+)( {LIVES_ON})?")
_NEWS = re.compile(rf"{RANK_MARK}process (\d+) (\S+) (.*)")

_HELLO_SECONDS, _LATE_HELLO_SECONDS, _FIRST_SECONDS = 1.0, 0.05, 5.0

_DEAD = (  # launchers' messages about a process that failed
    re.compile(rb"PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)"),
    re.compile(rb"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+)"),
)


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
        self._known = Failures()
        self._ranks: dict[int, tuple[int, Process, socket.socket]] = {}  # by file descriptor
        self.lives_on = self.progressed = self._ends = False
        self.dead: dict[int, tuple[float, set[int]]] = {}
        """Times at which ranks of this host failed, by process, with those that then waited."""
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(path)
        self._server.listen(1024)
        self._wake, self._waker = os.pipe()
        self._read_all = threading.Event()
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)  # see `_refuse`
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
        return self._known.came_through

    @property
    def saved(self) -> bool:
        """Returns whether the job's last launch was asked to stop, and has saved."""
        return self._known.saved

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
        """The first failure, once the job has ended; closes all connections."""
        self._end_thread()
        self._thread.join(_FIRST_SECONDS)
        for source in (self._poll, self._server, *(x for _, _, x in self._ranks.values())):
            source.close()
        for descriptor in filter(None, (self._wake, self._spare)):
            os.close(descriptor)
        return self._known.first()

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
            process = self._known.find(int(pid), host) or Process(int(pid), host, node="")
            self._hear(process, said, here=False)
        self._on_news()

    def _take_line(self, line: bytes) -> None:
        """Reads a line of output, which may be the launcher's."""
        for found in filter(None, (pattern.search(line) for pattern in _DEAD)):
            rank, pid = found.groupdict().get("rank"), int(found["pid"])
            host = found["host"].decode(errors="replace")
            self._known.note_launchers_word(pid, host, rank.decode() if rank else None)

    def _note_rank(self, rank: re.Match[str]) -> Process:
        node, pid, host, lives_on = rank.groups()
        self.lives_on |= bool(lives_on)
        self._job.note_rank()
        return self._known.add(int(pid), host, node)

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
        self._known.note_end(process)
        if not process.in_order:
            self.dead[own] = time.monotonic(), set() if process.through else self.connected

    def _hear(self, process: Process, said: str, *, here: bool, own: int = 0) -> None:
        """Handles one report of a rank; `own` is its process id as this host's kernel sees it."""
        what, *rest = said.split() or [""]
        self._known.note_report(process, what)
        if what == PROGRESSED:
            self.progressed = True
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
            try:
                connection, said = self._accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._refuse()
                return
            connection.setblocking(False)
            if rank := _RANK.fullmatch(said):
                process = self._note_rank(rank)
                asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                own = struct.unpack("3i", asked)[0] or int(rank[2])  # differs in a container
                self._known.note_start(own)
                self._job.note_files(own)
                self._ranks[connection.fileno()] = own, process, connection
                # Edge-triggered: an old report must not put a rank ahead of one that ended first.
                self._poll.register(connection, select.EPOLLIN | select.EPOLLET)
            elif said == SAVED:
                self._known.note_saved_job()

    def _accept(self) -> tuple[socket.socket, str]:
        """Accepts a connection; returns its first report too."""
        connection, _ = self._server.accept()
        connection.settimeout(_LATE_HELLO_SECONDS if self._ends else _HELLO_SECONDS)
        return connection, connection.recv(1024).decode(errors="replace")

    def _refuse(self) -> None:
        """Reads a rank's name and closes its connection, since no file descriptor is free.

        The rank then prints its reports, as a rank on another host does.
        """
        if self._spare is not None:  # else a thread that reads a file has just taken it
            os.close(self._spare)
            self._spare = None
        with contextlib.suppress(OSError):
            connection, said = self._accept()
            connection.close()
            if rank := _RANK.fullmatch(said):
                self._note_rank(rank)
            elif said == SAVED:
                self._known.note_saved_job()
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)
