"""Which of a job's ranks died first: they tell the supervisor who they are, the kernel the rest."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import sys
import threading

LAUNCH = "JDASO_SUPERVISED"
"""A variable of the environment of supervised ranks: the launch they belong to."""

PATH = "JDASO_SUPERVISOR"
"""Another: where the supervisor listens, on its own host."""

RANK_MARK = "jdaso-rank "
"""How a supervised rank begins the line in which it says who it is."""

_to_supervisor: list[socket.socket] = []

_IS_THROUGH = re.compile(rf"{RANK_MARK}(\d+) is through")

_RANK = re.compile(rf"{RANK_MARK}(\d+) (\d+) (\S+)")

_HELLO_SECONDS = 1.0

_FAILED, _THROUGH, _AGAIN = b"failed", b"through", b"again"
"""What a rank says to the supervisor later: one message each."""

_DEAD = (  # what launchers say of a process that died
    re.compile(r"PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)"),
    re.compile(r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+)"),
)


class Deaths:
    """Which of a job's processes failed or ended first; the launcher ends the others at once.

    One that fails by an exception says so itself. Ranks of this host keep a connection to `path`,
    which the kernel closes as they die: before what the launcher notices it by, for that was opened
    earlier. Of other hosts' the launcher's own words are all there is; of several dead it may name
    one that it has ended itself.
    """

    def __init__(self, path: str):
        self._names: dict[int, str] = {}  # by the process
        self._ranks: dict[int, tuple[int, socket.socket]] = {}  # by file descriptor
        self._said: list[tuple[int, str]] = []  # by the launcher: process, what
        self._through: set[int] = set()  # processes whose session is closed
        self._first: str | None = None
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(path)
        self._server.listen(128)
        self._wake, self._waker = os.pipe()
        self._poll = select.epoll()  # which tells of events in their order
        for source in (self._server.fileno(), self._wake):
            self._poll.register(source, select.EPOLLIN)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def read(self, line: str) -> bool:
        """Takes a line of the job's; whether it is not for the user."""
        if rank := _RANK.fullmatch(line.rstrip("\n")):
            self._name(rank)
            return True
        if through := _IS_THROUGH.fullmatch(line.rstrip("\n")):
            self._through.add(int(through[1]))
            return True
        for found in filter(None, (pattern.search(line) for pattern in _DEAD)):
            rank, pid = found.groupdict().get("rank"), int(found["pid"])
            name = f"node {rank} {{}} first (process {pid} on host {found['host']})"
            if rank is not None or pid in self._names:
                self._said.append((pid, self._names.get(pid, name).format("died")))
        return False

    @property
    def began(self) -> bool:
        """Whether a rank has said who it is."""
        return bool(self._names)

    @property
    def came_through(self) -> bool:
        """Whether a rank has closed its session in order, and made no other one."""
        return bool(self._through & set(self._names))

    def first(self) -> str | None:
        """Who it was, once the job has ended; first of all."""
        os.close(self._waker)
        self._thread.join(timeout=1.0)
        for source in (self._poll, self._server, *(x for _, x in self._ranks.values())):
            source.close()
        os.close(self._wake)
        said = [what for pid, what in self._said if pid not in self._through]
        return next(iter((*filter(None, [self._first]), *said)), None)

    def _name(self, rank: re.Match[str]) -> None:
        node, pid, host = rank.groups()
        self._names[int(pid)] = f"node {node} {{}} first (process {pid} on host {host})"

    def _watch(self) -> None:
        ended = False
        while not ended:
            for source, _ in self._poll.poll():
                if source == self._wake:
                    ended = True
                elif source == self._server.fileno():
                    self._welcome()
                elif (what := self._heard(source)) is not None and self._first is None:
                    self._first = self._names[self._ranks[source][0]].format(what)

    def _heard(self, source: int) -> str | None:
        """What has become of a rank, if that is what the job fails of."""
        pid, connection = self._ranks[source]
        said = b""
        with contextlib.suppress(OSError):
            said = connection.recv(64)
        if said == _THROUGH:
            self._through.add(pid)
        elif said == _AGAIN:
            self._through.discard(pid)
        elif said == _FAILED:
            return "failed"
        else:
            self._poll.unregister(source)
            return None if pid in self._through else "died"
        return None

    def _welcome(self) -> None:
        """A rank of this host says who it is."""
        with contextlib.suppress(OSError):
            connection, _ = self._server.accept()
            connection.settimeout(_HELLO_SECONDS)
            if rank := _RANK.fullmatch(connection.recv(1024).decode(errors="replace")):
                self._name(rank)
                self._ranks[connection.fileno()] = int(rank[2]), connection
                self._poll.register(connection, select.EPOLLIN)


def say_rank(node: int, host: str) -> None:
    """Tells a supervisor, if there is one, which process this node is.

    One on this host is told by a connection, which stays for as long as the process lives.
    """
    if not os.environ.get(LAUNCH):
        return
    if _to_supervisor:  # one session after another
        _tell(_AGAIN)
        return
    text = f"{RANK_MARK}{node} {os.getpid()} {host}"
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _to_supervisor.append(connection)
    try:
        connection.connect(os.environ.get(PATH, ""))
        connection.sendall(text.encode())
        os.register_at_fork(after_in_child=connection.close)  # a child is not this node
    except OSError:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def say_failed() -> None:
    """Tells a supervisor on this host that this node fails, and not because another did."""
    _tell(_FAILED)


def say_through() -> None:
    """Tells it that this node has closed its session in order."""
    if _to_supervisor and not _tell(_THROUGH):
        sys.stderr.write(f"{RANK_MARK}{os.getpid()} is through\n")
        sys.stderr.flush()


def _tell(what: bytes) -> bool:
    """Whether a supervisor on this host was told."""
    for connection in _to_supervisor:
        with contextlib.suppress(OSError):
            connection.send(what, socket.MSG_DONTWAIT)
            return True
    return False
