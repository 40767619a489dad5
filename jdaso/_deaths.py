"""The first of a job's ranks to fail, and what ranks can do; they tell the supervisor."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable

from ._guard import LAUNCH, Job
from ._host import survives_deaths

PATH = "JDASO_SUPERVISOR"
"""A variable of the environment of ranks: where the supervisor listens, on its own host."""

RANK_MARK = "\x1ejdaso-rank "
"""The begin of what a supervised rank of another host reports on standard error: with a
character that nobody prints, since these bytes are taken out of the stream."""

_MARK, _LONGEST_MARK, _LONGEST_LINE = RANK_MARK.encode(), 400, 1000

_UNKNOWN = "a node {} first"
"""A node that has not said who it is. The names of others have the same form."""

_LIVES_ON = "goes on where others die"

_to_supervisor: list[socket.socket] = []

_RANK = re.compile(rf"{RANK_MARK}(\d+) (\d+) (\S+)( {_LIVES_ON})?")
_NEWS = re.compile(rf"{RANK_MARK}process (\d+) (.*)")

_CONNECT_SECONDS, _HELLO_SECONDS, _FIRST_SECONDS = 5.0, 1.0, 5.0

_FAILED, _THROUGH, _AGAIN, _SAVED, _SAVES = "failed", "through", "again", "saved", "saves"
"""Reports of a rank to the supervisor: one message each; after the last one, its signals."""

_DEAD = (  # what launchers say of a process that died
    re.compile(rb"PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)"),
    re.compile(rb"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+)"),
)


class Deaths:
    """Which of a job's processes failed or ended first; the launcher ends the others at once.

    One that fails by an exception says so itself. Each rank of this host holds a connection to
    `path`, which the kernel closes as the rank dies: before the launcher's pipes, which were opened
    earlier and may be held by what the rank has forked. Of other hosts' ranks the launcher's own
    words are all there is; of several dead it may name one that it has ended itself.

    Args:
        path: of the socket to listen at.
        job: learns which ranks save when they are told to, and of MPI's files.
        on_news: called by a thread after each change.
    """

    def __init__(self, path: str, job: Job, on_news: Callable[[], None] = lambda: None):
        self._job, self._on_news = job, on_news
        self._names: dict[int, str] = {}  # by the process
        self._ranks: dict[int, tuple[int, int, socket.socket]] = {}  # by file descriptor
        self._said: list[tuple[int, str]] = []  # by the launcher: process, what
        self._through: set[int] = set()  # processes whose session is closed
        self._first: str | None = None
        self.saved = self.lives_on = False
        self.dead: dict[int, tuple[float, set[int]]] = {}
        """When ranks of this host died, by process, and which others were connected then."""
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(path)
        self._server.listen(1024)
        self._wake, self._waker = os.pipe()
        self._heard_all = threading.Event()
        self._poll = select.epoll()  # which tells of events in their order
        for source in (self._server.fileno(), self._wake):
            self._poll.register(source, select.EPOLLIN)
        self._thread = threading.Thread(target=self._watch, name="jdaso-deaths", daemon=True)
        self._thread.start()

    def look(self) -> Callable[[bytes], bytes]:
        """Returns what takes a stream of the job's and gives back the bytes that are the user's."""
        return _Look(self._take_mark, self._take_line)

    @property
    def came_through(self) -> bool:
        """Whether a rank has closed its session in order, and made no other one."""
        return bool(self._through & set(self._names))

    @property
    def connected(self) -> set[int]:
        """Processes of the ranks of this host that live."""
        return {pid for pid, _, _ in list(self._ranks.values())}

    def catch_up(self) -> None:
        """Returns once all that ranks of this host have said until now is known."""
        self._heard_all.clear()
        os.write(self._waker, b"x")
        self._heard_all.wait(_FIRST_SECONDS)

    def first(self) -> str | None:
        """Who it was, once the job has ended; first of all."""
        os.close(self._waker)
        self._thread.join(_FIRST_SECONDS)
        for source in (self._poll, self._server, *(x for _, _, x in self._ranks.values())):
            source.close()
        os.close(self._wake)
        said = [what for pid, what in self._said if pid not in self._through]
        return next(iter((*filter(None, [self._first]), *said)), None)

    def _take_mark(self, mark: bytes) -> None:
        """Takes what a rank of another host says."""
        text = mark.decode(errors="replace").rstrip("\r\n")
        if rank := _RANK.fullmatch(text):
            self._name(rank)
        elif news := _NEWS.fullmatch(text):
            self._hear(int(news[1]), news[2], here=False)
        self._on_news()

    def _take_line(self, line: bytes) -> None:
        """Takes a line of output: the launcher's, perhaps."""
        for found in filter(None, (pattern.search(line) for pattern in _DEAD)):
            rank, pid = found.groupdict().get("rank"), int(found["pid"])
            host = found["host"].decode(errors="replace")
            name = f"node {rank and rank.decode()} {{}} first (process {pid} on host {host})"
            if rank is not None or pid in self._names:
                self._said.append((pid, _named(self._names.get(pid, name), "died")))

    def _name(self, rank: re.Match[str]) -> None:
        node, pid, host, lives_on = rank.groups()
        self.lives_on |= bool(lives_on)
        self._job.speaks = True
        self._names[int(pid)] = f"node {node} {{}} first (process {pid} on host {host})"

    def _watch(self) -> None:
        ended = asked = False
        while not ended:
            events = self._poll.poll(0 if asked else -1)
            if not events:  # all is known that was said before we were asked
                asked = False
                self._heard_all.set()
            for source, _ in events:
                if source == self._wake:
                    asked = True
                    ended = not os.read(self._wake, 1)
                elif source == self._server.fileno():
                    self._welcome()
                else:
                    self._attend(source)
            self._on_news()

    def _attend(self, source: int) -> None:
        """Takes all that a connected rank has said, and that it has ended."""
        own, pid, connection = self._ranks[source]
        try:
            while said := connection.recv(1024):
                self._hear(pid, said.decode(errors="replace"), here=True, own=own)
        except BlockingIOError:
            return
        except OSError:
            pass  # it has ended
        self._poll.unregister(source)
        del self._ranks[source]
        connection.close()
        self._job.savers.pop(own, None)
        if pid not in self._through:
            self._first = self._first or _named(self._names[pid], "died")
            self.dead[own] = time.monotonic(), self.connected

    def _hear(self, pid: int, said: str, *, here: bool, own: int = 0) -> None:
        """Takes one message of a rank's; `own` is its process as this host's kernel knows it."""
        what, *rest = said.split() or [""]
        if what == _THROUGH:
            self._through.add(pid)
        elif what == _AGAIN:
            self._through.discard(pid)
        elif what == _FAILED:
            self._first = self._first or _named(self._names.get(pid, _UNKNOWN), "failed")
        elif what == _SAVED:
            self.saved = True
        elif what == _SAVES:
            numbers = [int(number) for number in rest if number.isdecimal()]
            taken = [number for number in numbers if number in signal.valid_signals()]
            if not here:
                self._job.saves_elsewhere = taken
            elif taken:
                self._job.savers[own] = taken
            else:
                self._job.savers.pop(own, None)

    def _welcome(self) -> None:
        """A rank of this host says who it is; a supervisor below this one only what happens."""
        with contextlib.suppress(OSError):
            connection, _ = self._server.accept()
            connection.settimeout(_HELLO_SECONDS)
            said = connection.recv(1024).decode(errors="replace")
            connection.setblocking(False)
            if rank := _RANK.fullmatch(said):
                self._name(rank)
                asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                own = struct.unpack("3i", asked)[0] or int(rank[2])  # in a container it has another
                self._job.note_files(own)
                self._ranks[connection.fileno()] = own, int(rank[2]), connection
                self._poll.register(connection, select.EPOLLIN)
            elif said == _SAVED:
                self.saved = True


def _named(name: str, how: str) -> str:
    """Puts into a name how its node ended; nothing else in it is touched, whatever it is."""
    return name.replace("{}", how, 1)


class _Look:
    """Takes marks out of a stream, and looks at its lines, without holding anything else up."""

    def __init__(self, on_mark: Callable[[bytes], None], on_line: Callable[[bytes], None]):
        self._on_mark, self._on_line = on_mark, on_line
        self._held = self._line = b""

    def __call__(self, data: bytes) -> bytes:
        """Returns what is for the user; given nothing, all that is held."""
        text, self._held = self._held + data, b""
        if not data:
            return text
        while (begin := text.find(_MARK)) >= 0 and (end := text.find(b"\n", begin)) >= 0:
            self._on_mark(text[begin:end])
            text = text[:begin] + text[end + 1 :]
        cut = begin if begin >= 0 and len(text) - begin < _LONGEST_MARK else len(text)
        if begin < 0:
            cut -= next((n for n in range(len(_MARK) - 1, 0, -1) if text.endswith(_MARK[:n])), 0)
        text, self._held = text[:cut], text[cut:]
        whole, newline, rest = (self._line + text).rpartition(b"\n")
        self._line = rest[-_LONGEST_LINE:]
        if newline and b"PID" in whole:
            for line in whole.split(b"\n"):
                self._on_line(line[-_LONGEST_LINE:])
        return text


def say_rank(node: int, host: str) -> None:
    """Tells a supervisor, if there is one, which process this node is.

    One on this host is told by a connection, which stays for as long as the process lives. What the
    process starts is not this node, and does not learn where the supervisor is.
    """
    if not os.environ.get(LAUNCH):
        return
    if _to_supervisor:  # one session after another
        _tell(_AGAIN)
        return
    path = os.environ.pop(PATH, None)
    if path is None:  # started by a rank
        return
    text = f"{RANK_MARK}{node} {os.getpid()} {host}"
    text += f" {_LIVES_ON}" * survives_deaths()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _to_supervisor.append(connection)
    os.register_at_fork(after_in_child=_forget_supervisor)
    try:
        _connect(connection, path, text)
    except OSError:
        _print(text)


def say_failed() -> None:
    """Tells a supervisor that this node fails, and not because another did."""
    _tell(_FAILED)


def say_through() -> None:
    """Tells it that this node has closed its session in order."""
    _tell(_THROUGH)


def say_saves(signals: Iterable[int]) -> None:
    """Tells it which signals make this node save and end."""
    _tell(" ".join([_SAVES, *(str(int(number)) for number in signals)]))


def say_saved() -> None:
    """Tells it that this run was told to stop, and has saved: what status 75 means."""
    _tell(_SAVED)


def say_job_saved() -> None:
    """The same, said by a supervisor to the one that it was started by."""
    if path := os.environ.get(PATH):
        with contextlib.suppress(OSError):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                _connect(connection, path, _SAVED)


def _tell(what: str) -> None:
    for connection in _to_supervisor:
        try:
            connection.send(what.encode(), socket.MSG_DONTWAIT)
        except OSError:
            _print(f"{RANK_MARK}process {os.getpid()} {what}")


def _connect(connection: socket.socket, path: str, text: str) -> None:
    connection.settimeout(_CONNECT_SECONDS)  # a supervisor that was stopped takes nobody in
    connection.connect(path)
    connection.sendall(text.encode())


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _forget_supervisor() -> None:
    """A forked process is not this node; it must not hold its connection open either."""
    for connection in _to_supervisor:
        connection.close()
    _to_supervisor.clear()
