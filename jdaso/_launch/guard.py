"""A job's processes on this host: finds them, asks them to save, ends them, removes their files.

The supervisor does this; if it was killed, the guard does. The guard is this file, run as a
program, and so imports only the standard library.
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
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

LAUNCH = "JDASO_SUPERVISED"
"""Environment variable of supervised processes: the launches they belong to, outermost first,
separated by colons. All processes that a job starts inherit it."""

KILL_SECONDS = 5.0
"""A launcher has this long after SIGTERM to end its ranks, including those on other hosts."""

_LEAVE_SECONDS = 1.0
"""Time for processes that outlive their launcher, since they may be about to end by themselves."""

_LOOK_SECONDS = 0.05

_LEAST_SECONDS = 1.0
"""Seconds in which a launcher can end what it started on other hosts, as srun does."""
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU)
_MPI_FILE = re.compile(r"(?P<kind>mpich_shm_[0-9a-f]+_)\d+|(ucx_shm|sm_segment|vader_segment)\S*")
_SHM = "/dev/shm"
_noting = threading.Lock()
"""Held to replace a job's dictionaries: other threads may be reading the old ones."""


@dataclass
class Job:
    """One launch of a job, with everything needed to end it.

    Args:
        tag: the last part of its `LAUNCH`.
        leader: process id of the launcher; 0 until it has been started.
        savers: signals at which a rank of this host saves and ends, by its process id.
        saves_elsewhere: signals at which ranks of other hosts save and end.
        speaks: whether a rank has identified itself.
        passed_on: the signal that the supervisor got and has passed on; 0 if none.
        asked: the savers that have been signalled.
        files: MPI's files in /dev/shm that its ranks mapped, with device and inode.
    """

    tag: str
    leader: int = 0
    savers: dict[int, list[int]] = field(default_factory=dict)
    saves_elsewhere: list[int] = field(default_factory=list)
    speaks: bool = False
    passed_on: int = 0
    asked: list[int] = field(default_factory=list)
    files: dict[str, list[int]] = field(default_factory=dict)

    @property
    def saves(self) -> bool:
        """Returns whether a rank has reported that it saves when asked to stop."""
        return bool(self.savers or self.saves_elsewhere)

    def note_rank(self) -> None:
        """Notes that a rank of the job has connected."""
        self.speaks = True

    def note_saver(self, pid: int, signals: list[int]) -> None:
        """Notes the signals at which a rank of this host saves and ends; none once it has ended."""
        with _noting:
            others = {other: taken for other, taken in self.savers.items() if other != pid}
            self.savers = others | ({pid: signals} if signals else {})

    def note_savers_elsewhere(self, signals: list[int]) -> None:
        """Notes the signals at which ranks of other hosts save and end."""
        self.saves_elsewhere = signals

    def tell(self, number: int) -> None:
        """Asks the job to save and end.

        Ranks of this host that handle signals get them directly, whatever launcher or script is in
        between. Otherwise the launcher has to pass a signal on: launchers pass on SIGUSR1, SIGUSR2
        and Ctrl-C, but end the ranks on SIGTERM. A job that has reported no rank that saves, such
        as one before its first session, gets what ends it: SIGTERM, or the given signal. May be
        called again, to signal ranks that have begun to handle signals since.
        """
        first, self.passed_on = not self.passed_on, number
        for pid, taken in list(self.savers.items()):
            if pid not in self.asked:
                self.asked.append(pid)
                _send(pid, _preferred(taken, taken[0]))
        if self.asked or not self.leader or not first:
            return
        other = signal.SIGTERM if number in _ENDS else number
        _send(self.leader, _preferred(self.saves_elsewhere, other))

    def left(self) -> list[int]:
        """Processes of this job that run on this host."""
        return [pid for pid, value in _supervised() if self.tag in value.split(":")]

    def orphans(self, rank: int) -> list[int]:
        """Processes that a failed rank has left behind: launchers give each rank its own group."""
        return [pid for pid in self.left() if pid != rank and _group(pid) == rank != self.leader]

    def note_files(self, pid: int) -> None:
        """Records MPI's files in /dev/shm that a rank has mapped, while the rank runs."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                path = line.split(maxsplit=5)[-1]
                if os.path.dirname(path) == _SHM and _MPI_FILE.fullmatch(os.path.basename(path)):
                    with contextlib.suppress(OSError):
                        found, inode = os.stat(path), int(line.split(maxsplit=5)[4])
                        if found.st_ino == inode:  # not a file of a container with its own /dev/shm
                            with _noting:
                                self.files = self.files | {path: [found.st_dev, inode]}

    def remove_files(self) -> None:
        """Removes MPI's files from /dev/shm, which killed ranks leave behind."""
        for path, (device, inode) in self.files.items():
            kind = _MPI_FILE.fullmatch(os.path.basename(path))
            with contextlib.suppress(OSError):
                found = os.stat(path)
                if (found.st_dev, found.st_ino) == (device, inode):
                    os.unlink(path)
            if kind is not None and kind["kind"]:  # MPICH numbers the files that it makes later
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
        """Ends the job; returns the number of processes that its launcher had left behind.

        A launcher ends its ranks, also on other hosts, when it ends; a killed one cannot.

        Args:
            runs: returns whether the launcher still runs.
            seconds: how long the launcher may take to end normally. If 0, everything is killed as
                soon as the launcher has had a second to end what it started on other hosts.
            leave: how long processes left behind may go on.
            hurry: ends everything at once as soon as it returns True.
        """
        if runs():
            _send(self.leader, signal.SIGTERM)
            begin = time.monotonic()
            while runs() and time.monotonic() < begin + (seconds or _LEAST_SECONDS):
                if hurry() and time.monotonic() > begin + _LEAST_SECONDS:
                    break
                time.sleep(_LOOK_SECONDS)
        ended, begin = 0, time.monotonic()
        while (left := self.left()) or runs():
            time.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            if now > begin + leave + 2 * KILL_SECONDS:
                break  # they cannot be ended
            if not runs() and now < begin + leave and not hurry():
                continue
            for pid in {*left, self.leader} if runs() else left:  # its number may be reused
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
    """Processes that were started with `LAUNCH` in their environment, with its value."""
    name = f"{LAUNCH}=".encode()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
                found = file.read()  # empty once a process has ended; scanning all of them is fast
            if name in found and _state(pid)[0] not in ("Z", "X"):
                for variable in found.split(b"\0"):
                    if variable.startswith(name):
                        yield pid, variable[len(name) :].decode(errors="replace")


def _state(pid: int) -> list[str]:
    """State, parent, group of a process."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()[:3]


def _group(pid: int) -> int:
    try:
        return int(_state(pid)[2])
    except OSError:  # the process has ended meanwhile
        return 0


def as_message(job: Job | None) -> bytes:
    """Serializes a job for the guard."""
    return b"null" if job is None else json.dumps(asdict(job)).encode()


def _read(message: bytes) -> Job | None:
    values = json.loads(message)
    if values is not None:
        values["savers"] = {int(pid): taken for pid, taken in values["savers"].items()}
    return None if values is None else Job(**values)


def _take_over(job: Job, outputs: list[int], grace_seconds: float) -> None:
    """Ends the job of a supervisor that was killed, once its ranks have had time to save."""
    if not job.passed_on:
        job.tell(signal.SIGTERM)
    limit = time.monotonic() + (grace_seconds if job.saves else KILL_SECONDS)
    while job.left() and time.monotonic() < limit:
        # If nothing reads its output, a rank or launcher gets SIGPIPE, or blocks.
        for output in select.select(outputs, [], [], _LOOK_SECONDS)[0]:
            with contextlib.suppress(BlockingIOError):
                while os.read(output, 1 << 16) and time.monotonic() < limit:
                    pass
        time.sleep(_LOOK_SECONDS)
    job.end(lambda: job.leader in job.left(), KILL_SECONDS)


def main(grace_seconds: str, *outputs: str) -> None:
    """Reads the job's state from standard input, and ends the job if the supervisor is killed."""
    job = None
    with socket.socket(fileno=0) as supervisor:
        while message := supervisor.recv(1 << 20):  # until the supervisor ends, for whatever reason
            job = _read(message)
    if job is not None:
        _take_over(job, [int(output) for output in outputs], float(grace_seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
