"""A job's processes on this host: finds them, asks them to save, ends them, clears up after them.

The supervisor does so, and where it was killed the guard: this file run as a program, which is why
it imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

LAUNCH = "JDASO_SUPERVISED"
"""A variable of the environment of supervised processes: the launches they belong to, outermost
first, with colons between. All that a job starts inherits the variable."""

STOPPED_STATUS = 75
"""Exit status of a program that was told to stop and has saved: EX_TEMPFAIL, start it again."""

KILL_SECONDS = 5.0
"""A launcher that gets SIGTERM has this long to end its ranks, also on other hosts."""

_LEAVE_SECONDS = 1.0
"""Processes that outlive their launcher may be about to end by themselves."""

_LOOK_SECONDS = 0.05
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU)
_MPI_FILE = re.compile(r"(?P<kind>mpich_shm_[0-9a-f]+_)\d+|(ucx_shm|sm_segment|vader_segment)\S*")
_SHM = "/dev/shm"


@dataclass
class Job:
    """One launch of a job, with all that is needed to end it.

    Args:
        tag: the last part of its `LAUNCH`.
        leader: process id of the launcher; 0 until it has been started.
        savers: signals at which a rank of this host saves and ends, by its process id.
        saves_elsewhere: signals at which ranks of other hosts do.
        speaks: whether a rank has said that it is one.
        told: the signal that the supervisor got and has handed on; 0 if none.
        asked: the savers that have been told.
        files: what its ranks mapped of MPI's in /dev/shm, with device and inode.
    """

    tag: str
    leader: int = 0
    savers: dict[int, list[int]] = field(default_factory=dict)
    saves_elsewhere: list[int] = field(default_factory=list)
    speaks: bool = False
    told: int = 0
    asked: list[int] = field(default_factory=list)
    files: dict[str, list[int]] = field(default_factory=dict)

    @property
    def saves(self) -> bool:
        """Returns whether a rank has said that it saves when it is told to stop."""
        return bool(self.savers or self.saves_elsewhere)

    def tell(self, number: int) -> None:
        """Asks the job to save and end.

        Ranks of this host that take signals get them directly, whatever launcher or script stands
        between. Else the launcher has to hand one on: launchers do so with SIGUSR1, SIGUSR2 and
        Ctrl-C, but end the ranks on SIGTERM. That is what a job gets whose ranks save nothing; one
        of which nothing is known may have ranks elsewhere that do. May be called again: ranks that
        have begun to take signals meanwhile are asked then.
        """
        first, self.told = not self.told, number
        for pid, taken in list(self.savers.items()):
            if pid not in self.asked:
                self.asked.append(pid)
                _send(pid, _preferred(taken, taken[0]))
        if self.asked or not self.leader or not first:
            return
        other = signal.SIGTERM if number in _ENDS else number
        if not self.speaks and number != signal.SIGINT:
            other = signal.SIGUSR1
        _send(self.leader, _preferred(self.saves_elsewhere, other))

    def left(self) -> list[int]:
        """Processes of this job that run on this host."""
        return [pid for pid, value in _supervised() if self.tag in value.split(":")]

    def orphans(self, rank: int) -> list[int]:
        """Returns what a dead rank has left behind: launchers give each rank its own group."""
        return [pid for pid in self.left() if pid != rank and _group(pid) == rank != self.leader]

    def note_files(self, pid: int) -> None:
        """Remembers what a rank has mapped of MPI's files in /dev/shm, while it lives."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                path = line.split(maxsplit=5)[-1]
                if os.path.dirname(path) == _SHM and _MPI_FILE.fullmatch(os.path.basename(path)):
                    with contextlib.suppress(OSError):
                        found, inode = os.stat(path), int(line.split(maxsplit=5)[4])
                        if found.st_ino == inode:  # and not of a container with its own /dev/shm
                            self.files[path] = [found.st_dev, inode]

    def remove_files(self) -> None:
        """Removes what MPI has left in /dev/shm: of ranks that are killed, nobody else does."""
        for path, (device, inode) in self.files.items():
            kind = _MPI_FILE.fullmatch(os.path.basename(path))
            with contextlib.suppress(OSError):
                found = os.stat(path)
                if (found.st_dev, found.st_ino) == (device, inode):
                    os.unlink(path)
            if kind is not None and kind["kind"]:  # MPICH numbers what it makes later
                for later in Path(_SHM).glob(f"{kind['kind']}*"):
                    with contextlib.suppress(OSError):
                        later.unlink()
        self.files = {}

    def end(
        self,
        runs: Callable[[], bool],
        seconds: float,
        leave: float = _LEAVE_SECONDS,
        hurry: Callable[[], bool] = lambda: False,
    ) -> int:
        """Ends the job; how many processes its launcher had left behind.

        A launcher ends its ranks, also on other hosts, when it ends; a killed one cannot.

        Args:
            runs: whether the launcher still does.
            seconds: how long it may take to end in order; 0 kills all at once.
            leave: how long processes that it left may go on.
            hurry: ends all at once as soon as it is true.
        """
        if runs() and seconds:
            _send(self.leader, signal.SIGTERM)
            limit = time.monotonic() + seconds
            while runs() and time.monotonic() < limit and not hurry():
                time.sleep(_LOOK_SECONDS)
        ended, begin = 0, time.monotonic()
        while (left := self.left()) or runs():
            time.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            if now > begin + leave + 2 * KILL_SECONDS:
                break  # nobody can end them
            if not runs() and now < begin + leave and not hurry():
                continue
            for pid in {*left, self.leader} if runs() else left:  # else its number may be another's
                _send(pid, signal.SIGKILL)
            ended = max(ended, len({*left} - {self.leader}))
        self.remove_files()
        return ended


def _preferred(taken: list[int], other: int) -> int:
    return next((n for n in (signal.SIGUSR1, signal.SIGUSR2) if n in taken), other)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _supervised() -> Iterator[tuple[int, str]]:
    """Processes that have `LAUNCH` in the environment that they were started with."""
    name = f"{LAUNCH}=".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if _state(int(folder.name))[0] not in ("Z", "X"):
                    for variable in (folder / "environ").read_bytes().split(b"\0"):
                        if variable.startswith(name):
                            yield int(folder.name), variable[len(name) :].decode(errors="replace")


def _state(pid: int) -> list[str]:
    """State, parent, group of a process."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()[:3]


def _group(pid: int) -> int:
    try:
        return int(_state(pid)[2])
    except OSError:  # it has ended meanwhile
        return 0


def as_message(job: Job | None) -> bytes:
    """Writes a job for the guard."""
    return b"null" if job is None else json.dumps(asdict(job)).encode()


def _read(message: bytes) -> Job | None:
    values = json.loads(message)
    if values is not None:
        values["savers"] = {int(pid): taken for pid, taken in values["savers"].items()}
    return None if values is None else Job(**values)


def _take_over(job: Job, outputs: list[int], grace_seconds: float) -> None:
    """Ends the job of a supervisor that was killed; its ranks may save first."""
    if not job.told:
        job.tell(signal.SIGTERM)
    limit = time.monotonic() + (grace_seconds if job.saves else KILL_SECONDS)
    while job.left() and time.monotonic() < limit:
        # A rank or launcher whose output nobody reads would be ended by SIGPIPE, or stand still.
        for output in select.select(outputs, [], [], _LOOK_SECONDS)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(output, 1 << 16)
        time.sleep(_LOOK_SECONDS)
    job.end(lambda: job.leader in job.left(), KILL_SECONDS)


def main(grace_seconds: str, *outputs: str) -> None:
    """Learns from standard input what the job is, and ends the job if the supervisor is killed."""
    job = None
    with socket.socket(fileno=0) as supervisor:
        while message := supervisor.recv(1 << 20):  # until it ends, however it ends
            job = _read(message)
    if job is not None:
        _take_over(job, [int(output) for output in outputs], float(grace_seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
