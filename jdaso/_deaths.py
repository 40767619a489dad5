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

_RANK = re.compile(rf"{RANK_MARK}(\d+) (\d+) (\S+)")

_HELLO_SECONDS = 1.0

_FAILED, _THROUGH = b"failed.", b"through."
"""What a rank says to the supervisor later."""

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
        self._ranks: dict[int, socket.socket] = {}  # by file descriptor
        self._named: dict[int, str] = {}  # the same
        self._said: list[str] = []  # by the launcher
        self._first: str | None = None
        self._server = socket.socket(socket.AF_UNIX)
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
        for found in filter(None, (pattern.search(line) for pattern in _DEAD)):
            rank = found.groupdict().get("rank")
            name = f"node {rank} {{}} first (process {found['pid']} on host {found['host']})"
            if rank is not None or int(found["pid"]) in self._names:
                self._said.append(self._names.get(int(found["pid"]), name).format("died"))
        return False

    def first(self) -> str | None:
        """Who it was, once the job has ended."""
        os.close(self._waker)
        self._thread.join(timeout=1.0)
        for source in (self._poll, self._server, *self._ranks.values()):
            source.close()
        os.close(self._wake)
        return next(iter((*filter(None, [self._first]), *self._said)), None)

    def _name(self, rank: re.Match[str]) -> str:
        node, pid, host = rank.groups()
        name = f"node {node} {{}} first (process {pid} on host {host})"
        return self._names.setdefault(int(pid), name)

    def _watch(self) -> None:
        while self._first is None:
            for source, _ in self._poll.poll():
                if source == self._wake:
                    return
                if source == self._server.fileno():
                    self._welcome()
                elif (what := self._heard(source)) is not None:
                    self._first = self._named[source].format(what)
                    break

    def _heard(self, source: int) -> str | None:
        """What has become of a rank; None of one that is through."""
        said = b""
        with contextlib.suppress(OSError):
            said = self._ranks[source].recv(64)
        if _THROUGH in said:
            self._poll.unregister(source)
            return None
        return "failed" if _FAILED in said else "died"

    def _welcome(self) -> None:
        """A rank of this host says who it is."""
        with contextlib.suppress(OSError):
            connection, _ = self._server.accept()
            connection.settimeout(_HELLO_SECONDS)
            if rank := _RANK.fullmatch(connection.recv(1024).decode(errors="replace")):
                self._ranks[connection.fileno()] = connection
                self._named[connection.fileno()] = self._name(rank)
                self._poll.register(connection, select.EPOLLIN)


def say_rank(node: int, host: str) -> None:
    """Tells a supervisor, if there is one, which process this node is.

    One on this host is told by a connection, which stays for as long as the process lives.
    """
    if not os.environ.get(LAUNCH) or _to_supervisor:
        return
    text, connection = f"{RANK_MARK}{node} {os.getpid()} {host}", socket.socket(socket.AF_UNIX)
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
    for connection in _to_supervisor:
        with contextlib.suppress(OSError):
            connection.send(_FAILED, socket.MSG_DONTWAIT)


def say_through() -> None:
    """Tells it that this node has closed its session in order."""
    for connection in _to_supervisor:
        with contextlib.suppress(OSError):
            connection.send(_THROUGH, socket.MSG_DONTWAIT)
