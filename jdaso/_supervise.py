"""Starts a job again where it failed, from its last checkpoint, on the hosts that still answer."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

from ._deaths import LAUNCH, PATH, Deaths
from ._launch import with_files_in
from ._types import STOPPED_STATUS

_LEAST_PAUSE, _MOST_PAUSE = 1.0, 30.0
"""Seconds between two starts; longer with each that ended soon."""

_SOON_SECONDS = 10.0
_LONGEST_PATH = 80
"""Of the folder of temporary files: with the socket's own name a path may have 107 bytes."""

_PROBE_SECONDS = 15.0
_KILL_SECONDS, _LEAVE_SECONDS = 5.0, 1.0


class Supervisor:
    """Runs a command until it ends well, is told to stop, or has failed too often.

    Args:
        command: what starts the ranks; ``{hosts}`` in it becomes the hosts that answer, ``{count}``
            their number.
        max_restarts: how often a job that failed is started again. One that was told to stop and
            has saved (status 75) is started again without being counted.
        hosts: who is asked before each start; none where empty.
        probe: the command that asks ``{host}``.
        grace_seconds: how long a job that is told to stop may take to save.
        say: takes each line of the supervisor's own.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        max_restarts: int = 0,
        hosts: Sequence[str] = (),
        probe: str = "ssh -o BatchMode=yes -o ConnectTimeout=5 {host} true",
        grace_seconds: float = 120.0,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ):
        self.command, self.max_restarts = list(command), max_restarts
        self.hosts, self.probe, self.grace_seconds = list(hosts), probe, grace_seconds
        self._say = lambda text: say(f"jdaso run: {text}")
        self._told: int | None = None  # the signal that told us to end
        self._forwarded = False  # to the job that runs
        self._process: subprocess.Popen | None = None

    def run(self) -> int:
        """The exit status of the last start; 128 + the signal's number where it was killed."""
        restarts, pause = 0, _LEAST_PAUSE
        with self._signals():
            while True:
                begin = time.monotonic()
                status = self._start_once()
                if status == 0 or self._told is not None:
                    return status
                if status == STOPPED_STATUS:
                    self._say("the job was told to stop and has saved; it is started again.")
                    self._wait(_LEAST_PAUSE)
                    if self._told is not None:
                        return status
                    continue
                if restarts >= self.max_restarts:
                    often = f" and was started again {restarts} times" if restarts else ""
                    self._say(f"the job failed (status {status}){often}.")
                    return status
                restarts += 1
                pause = _LEAST_PAUSE if time.monotonic() - begin > _SOON_SECONDS else pause
                self._say(
                    f"the job failed (status {status}); restart {restarts} of "
                    f"{self.max_restarts} in {pause:g} s."
                )
                self._wait(pause)
                if self._told is not None:
                    return 128 + self._told
                pause = min(2 * pause, _MOST_PAUSE)

    def _start_once(self) -> int:
        hosts = self._answering()
        if self.hosts and not hosts:
            self._say("no host answers.")
            return 1
        if self._told is not None:
            return 128 + self._told
        launch = uuid.uuid4().hex
        short = len(tempfile.gettempdir()) < _LONGEST_PATH
        folder = tempfile.mkdtemp(prefix="jdaso-run-", dir=None if short else "/tmp")
        try:
            return self._start_in(folder, launch, hosts)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _start_in(self, folder: str, launch: str, hosts: Sequence[str]) -> int:
        """Starts the job and sees it end; the folder is for the ranks to speak to us."""
        path = f"{folder}/socket"
        values = {"hosts": ",".join(hosts), "count": str(len(hosts))}
        command = [_filled(part, values) for part in self.command]
        deaths = Deaths(path)
        try:
            self._process = subprocess.Popen(
                command,
                env=with_files_in(folder, command, os.environ | {LAUNCH: launch, PATH: path}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches this process only, which hands it on
            )
        except OSError as error:
            deaths.first()
            self._say(f"{command[0]} cannot be started ({error}).")
            return 127
        if self._told is not None:
            self._tell_job()  # it came while the job was started
        streams = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        readers = [
            threading.Thread(target=_hand_on, args=(*pair, deaths), daemon=True) for pair in streams
        ]
        for reader in readers:
            reader.start()
        try:
            status = self._process.wait()
        finally:
            left = end_launch(self._process, launch)
            for reader in readers:
                reader.join(timeout=_KILL_SECONDS)
            first = deaths.first()
        # Where processes may die one by one, launchers take the end of the last for a good one.
        if status == 0 and not deaths.came_through and (deaths.began or "ulfm" in command):
            status = 1
        if left:
            self._say(f"{left} processes that the launcher left behind were ended.")
        if first is not None and self._told is None and status not in (0, STOPPED_STATUS):
            self._say(f"{first}.")
        return status if status >= 0 else 128 - status

    def _answering(self) -> list[str]:
        """Hosts that answer, in their order."""
        if not self.hosts:
            return []
        with ThreadPoolExecutor(min(len(self.hosts), 64)) as pool:
            answers = list(pool.map(self._answers, self.hosts))
        silent = [host for host, here in zip(self.hosts, answers, strict=True) if not here]
        if silent:
            self._say(f"left out, for they do not answer: {', '.join(silent)}.")
        return [host for host, here in zip(self.hosts, answers, strict=True) if here]

    def _answers(self, host: str) -> bool:
        command = [_filled(part, {"host": host}) for part in shlex.split(self.probe)]
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """What this process is told, the job is told; the second time it is ended at once."""
        numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
        numbers = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]  # nohup
        previous = {number: signal.signal(number, self._take_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _take_signal(self, number: int, _frame: object) -> None:
        again, self._told = self._forwarded, number
        if self._process is None or self._process.poll() is not None:
            return
        if again:
            self._process.kill()
        else:
            self._tell_job()

    def _tell_job(self) -> None:
        """Hands on what this process was told, and sees that it does not take for ever."""
        process = self._process
        assert process is not None
        self._forwarded = True
        # Launchers hand SIGUSR1 and Ctrl-C on to the ranks; SIGTERM ends them.
        told = signal.SIGINT if self._told == signal.SIGINT else signal.SIGUSR1
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(told)
        grace = threading.Timer(self.grace_seconds, process.kill)
        grace.daemon = True
        grace.start()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._told is None:
            time.sleep(0.05)


def _hand_on(source: Iterable[str], target: TextIO, deaths: Deaths) -> None:
    """Hands a stream of the job on, line by line."""
    for line in source:
        if not deaths.read(line):
            with contextlib.suppress(OSError, ValueError):  # nobody reads: the job goes on
                target.write(line)
                target.flush()


def end_launch(process: subprocess.Popen, launch: str) -> int:
    """Ends what is left of a launch on this host; how many processes that were.

    A launcher ends its ranks, also on other hosts, when it ends; a killed one cannot.
    """
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_SECONDS)
    ended, begin = 0, time.monotonic()
    while (left := list(_members(launch))) and time.monotonic() < begin + 2 * _KILL_SECONDS:
        time.sleep(0.05)
        if time.monotonic() < begin + _LEAVE_SECONDS:
            continue  # they may be about to end by themselves
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended = max(ended, len(left))
    process.wait()
    return ended


def _members(launch: str) -> Iterator[int]:
    """Processes of a launch, by the variable that they inherited."""
    tag = f"{LAUNCH}={launch}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                running = b"Z" not in (folder / "stat").read_bytes().rpartition(b")")[2][:3]
                if running and tag in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)


def _filled(part: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        part = part.replace(f"{{{name}}}", value)
    return part
