"""Starts a job again where it failed, from its last checkpoint, on the hosts that still answer."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import _guard
from ._deaths import PATH, Deaths, say_job_saved
from ._environment import with_home
from ._guard import KILL_SECONDS, LAUNCH, STOPPED_STATUS, Job
from ._launch import with_files_in
from ._relay import Relay, open_standard_streams

_LEAST_PAUSE, _MOST_PAUSE = 1.0, 30.0
"""Seconds between two starts; longer with each that ended soon."""

_SOON_SECONDS = 10.0
_LONGEST_PATH = 80
"""Of the folder of temporary files: with the socket's own name a path may have 107 bytes."""

_PROBE_SECONDS = 15.0

_ORPHAN_SECONDS, _NOTICE_SECONDS = 1.0, 5.0
"""After a rank's death: what the rank had forked is ended, then the whole job, if its launcher has
not seen to that. A launcher waits for a dead rank's pipes, which forked processes hold."""

_NOT_STARTED = 127
"""Exit status where there is no such command. Before the first start that is a mistake, which no
restart mends; later a file system may be away."""

_LOOK_SECONDS = 1.0
_REPEAT_SECONDS = 0.3
"""Seconds within which two signals count as one: a process and its group may both get it."""

_STOPS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU")
_AT_ONCE = (signal.SIGINT, signal.SIGQUIT)
"""Those that a person sends from a keyboard: the second of them waits for nothing."""

_PLACE = re.compile(r"(?P<open>\{?)(?P<whole>\{(?P<name>hosts|count)\})(?P<close>\}?)")


class Supervisor:
    """Runs a command until it ends well, is told to stop, or has failed too often.

    Args:
        command: what starts the ranks; see `placed` for ``{hosts}`` and ``{count}``.
        max_restarts: how often a job that failed is started again. One that was told to stop and
            has saved (status 75, and a rank says so) is started again without being counted.
        hosts: who is asked before each start; none where empty.
        probe: the command that asks ``{host}``.
        grace_seconds: how long a job that is told to stop may take to save.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        max_restarts: int = 0,
        hosts: Sequence[str] = (),
        probe: str = "ssh -o BatchMode=yes -o ConnectTimeout=5 {host} true",
        grace_seconds: float = 120.0,
    ):
        self.command, self.max_restarts = list(command), max_restarts
        self.hosts, self.probe, self.grace_seconds = list(hosts), shlex.split(probe), grace_seconds
        open_standard_streams()
        self._relay = Relay()
        self._say = self._relay.say
        self._wake, self._waker = os.pipe()
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        self._told: int | None = None  # the signal that told us to end
        self._told_at = 0.0
        self._count = 0  # of signals that are not the same one twice
        self._at_once = False
        self._began = False  # whether the command has ever been started

    def run(self) -> int:
        """The exit status of the last start; 128 + the signal's number where it was killed."""
        with self._signals():
            with self._guarded():
                status = self._run()
            seen = self._count
            self._relay.close(lambda: self._count > seen)
        if status == STOPPED_STATUS and self._told is not None:
            say_job_saved()
        return status

    def _run(self) -> int:
        restarts, pause = 0, _LEAST_PAUSE
        while True:
            begin = time.monotonic()
            status, saved = self._start_once()
            if status == 0 or self._told is not None:
                return status
            if status == STOPPED_STATUS and saved:
                self._say("the job was told to stop and has saved; it is started again.")
                self._pause_for(_LEAST_PAUSE)
                if self._told is not None:
                    return status
                continue
            if restarts >= self.max_restarts or (status == _NOT_STARTED and not self._began):
                times = "once" if restarts == 1 else f"{restarts} times"
                often = f" and was started again {times}" if restarts else ""
                self._say(f"the job failed (status {status}){often}.")
                return status
            restarts += 1
            pause = _LEAST_PAUSE if time.monotonic() - begin > _SOON_SECONDS else pause
            self._say(
                f"the job failed (status {status}); restart {restarts} of "
                f"{self.max_restarts} in {pause:g} s."
            )
            self._pause_for(pause)
            if self._told is not None:
                return 128 + self._told
            pause = min(2 * pause, _MOST_PAUSE)

    def _start_once(self) -> tuple[int, bool]:
        """The exit status of one start, and whether the job says that it has saved."""
        hosts = self._answering()
        if self._told is not None:
            return 128 + self._told, False
        if self.hosts and not hosts:
            self._say("no host answers.")
            return 1, False
        try:
            short = len(tempfile.gettempdir()) < _LONGEST_PATH
            folder = tempfile.mkdtemp(prefix="jdaso-run-", dir=None if short else "/tmp")
        except OSError as error:
            self._say(f"no folder for temporary files ({error}). Free some space, or set TMPDIR.")
            return 1, False
        try:
            return self._start_in(folder, hosts)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _start_in(self, folder: str, hosts: Sequence[str]) -> tuple[int, bool]:
        """Starts the job and sees it end; the folder is for the ranks to speak to us."""
        path, job = f"{folder}/socket", Job(uuid.uuid4().hex)
        outer = os.environ.get(LAUNCH)  # we are part of another supervisor's job, and so is ours
        tags = f"{outer}:{job.tag}" if outer else job.tag
        values = {"hosts": ",".join(hosts), "count": str(len(hosts))}
        command = [placed(part, values) for part in self.command] if hosts else self.command
        deaths = Deaths(path, job, self._news)
        self._relay.look_with(deaths.look)
        self._tell_guard(job)
        try:
            out, err = self._relay.outputs
            process = subprocess.Popen(
                command,
                env=with_files_in(
                    folder, command, with_home(os.environ | {LAUNCH: tags, PATH: path})
                ),
                stdin=_standard_input(),
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C reaches this process only, which hands it on
            )
        except (OSError, ValueError) as error:
            deaths.first()
            self._tell_guard(None)
            self._say(f"{command[0]} cannot be started ({error}).")
            return _NOT_STARTED, False
        self._began = True
        job.leader, left, first = process.pid, 0, None
        patience, leave = KILL_SECONDS, 1.0
        try:
            patience = self._see_it_end(process, job, deaths)
            if job.told and job.saves:
                leave = max(leave, self._told_at + self.grace_seconds - time.monotonic())
        finally:
            if not patience:
                leave = 0.0
            left = job.end(
                lambda: process.poll() is None, patience, leave, hurry=lambda: self._at_once
            )
            first = deaths.first()
            self._relay.settle()
            self._tell_guard(None)
        return self._judge(process, job, deaths, left, first), deaths.saved

    def _judge(
        self, process: subprocess.Popen, job: Job, deaths: Deaths, left: int, first: str | None
    ) -> int:
        """The status of a job that has ended, with a word about what is not as it should be."""
        if process.returncode is None:
            self._say(f"process {process.pid} cannot be ended; it is left to itself.")
        status = 128 + signal.SIGKILL if process.returncode is None else process.returncode
        # Where processes may die one by one, launchers take the end of the last for a good one.
        one_by_one = job.speaks or "ulfm" in self.command
        if status == 0 and one_by_one and not deaths.came_through:
            status = 1
        if status != 0 and job.told and deaths.saved:
            status = STOPPED_STATUS  # whatever a script or a launcher has made of it
        if left:
            self._say(f"{left} processes that the launcher left behind were ended.")
        if first is not None and self._told is None and status != 0 and not deaths.saved:
            self._say(f"{first}.")
        return status if status >= 0 else 128 - status

    def _see_it_end(self, process: subprocess.Popen, job: Job, deaths: Deaths) -> float:
        """Returns when the launcher has ended, or has to be: how long that may take it."""
        seen: set[int] = set()  # ranks whose death has been dealt with
        while process.poll() is None:
            self._tell_guard(job)
            now = time.monotonic()
            if self._told is not None:
                if not job.told:
                    deaths.catch_up()
                    self._announce(job)
                job.tell(self._told)
                if self._at_once:
                    return 0.0
                if now > self._told_at + self.grace_seconds:
                    self._say(f"the job has not ended within {self.grace_seconds:g} s.")
                    return KILL_SECONDS
            for rank, (died, others) in list(deaths.dead.items()):
                if rank not in seen and now > died + _ORPHAN_SECONDS:
                    seen.add(rank)
                    for orphan in job.orphans(rank):
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.kill(orphan, signal.SIGKILL)
                late = now > died + _NOTICE_SECONDS and others & deaths.connected
                if late and not deaths.lives_on:
                    self._say("the launcher does not end the job; it is ended.")
                    return KILL_SECONDS
            waits = any(now < died + 2 * _NOTICE_SECONDS for died, _ in deaths.dead.values())
            self._pause(_LOOK_SECONDS / 4 if waits else _LOOK_SECONDS)
        return KILL_SECONDS

    def _announce(self, job: Job) -> None:
        """Says what this process was told, and what becomes of the job."""
        assert self._told is not None
        name, limit = signal.Signals(self._told).name, f"{self.grace_seconds:g} s"
        what = "saves and ends" if job.saves else "is told to end"
        self._say(f"{name}: the job {what}, within {limit}; Ctrl-C (SIGINT) ends it at once.")

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
        command = [part.replace("{host}", host) for part in self.probe]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,  # what is there is the job's
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_PROBE_SECONDS,
                check=False,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Starts what ends the job if this process is killed."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with its:
                program = [sys.executable, "-I", "-S", str(Path(_guard.__file__).resolve())]
                sources = self._relay.sources
                guard = subprocess.Popen(
                    [*program, str(self.grace_seconds), *map(str, sources)],
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=sources,
                    start_new_session=True,  # what ends this process's group leaves it
                )
            self._guard, self._guard_knows = ours, _guard.as_message(None)
            try:
                yield
            finally:
                ours.close()
                try:
                    guard.wait(KILL_SECONDS)
                except subprocess.TimeoutExpired:
                    guard.kill()
                    guard.wait(KILL_SECONDS)

    def _tell_guard(self, job: Job | None) -> None:
        """Tells the guard what there is to end, if that has changed."""
        message = _guard.as_message(job)
        if message != self._guard_knows:
            with contextlib.suppress(OSError):  # it is stopped or gone; we ask again soon
                self._guard.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._guard_knows = message

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Takes signals; what is done about them is done where the job is looked after."""
        numbers = [signal.Signals[name] for name in _STOPS]
        numbers = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]  # nohup
        previous = {number: signal.signal(number, self._take_signal) for number in numbers}
        # A parent may have had SIGCHLD ignored: the status of the job would be lost.
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, previous)
        waker = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(waker)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _take_signal(self, number: int, _frame: object) -> None:
        now = time.monotonic()
        if self._told is None:
            self._told, self._told_at = number, now
        elif now < self._told_at + _REPEAT_SECONDS:
            return
        elif number in _AT_ONCE:
            self._at_once = True
        self._count += 1

    def _news(self) -> None:
        """Wakes the main thread; called by others."""
        with contextlib.suppress(OSError):
            os.write(self._waker, b"x")

    def _pause(self, seconds: float) -> None:
        """Waits until something happens, or so many seconds."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if poll.poll(1000 * seconds):
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 1 << 16)

    def _pause_for(self, seconds: float) -> None:
        """Waits so many seconds, or until this process is told to end."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._told is None:
            self._pause(left)


def placed(part: str, values: Mapping[str, str]) -> str:
    """Puts hosts and their number into an argument.

    ``{hosts}`` and ``{count}`` are replaced where they are an argument, or a word or a value in one
    (``--host={hosts}``, ``ppr:{count}:node``, ``-n{count}``). In other text (``run_{count}.npz``,
    ``${count}``) they are the program's own, and in two pairs of braces they are one pair.

    Example:
        >>> [placed(x, {"count": "2"}) for x in ("-n{count}", "run_{count}.npz", "{{count}}")]
        ['-n2', 'run_{count}.npz', '{count}']
    """

    def fill(found: re.Match[str]) -> str:
        before, behind = part[: found.start()], part[found.end() :]
        alone = re.search(r"(^|[\s=:,]|^-\w)$", before) and re.match(r"$|[\s:,]", behind)
        if not alone:
            return found[0]
        if found["open"] and found["close"]:
            return found["whole"]
        return found[0] if found["open"] or found["close"] else values.get(found["name"], found[0])

    return _PLACE.sub(fill, part)


def _standard_input() -> int | None:
    """A job's standard input: ours, but for a terminal in whose background we run.

    There a read would stop a process of ours; the job, in a session of its own, would take what is
    typed for the shell.
    """
    if sys.__stdin__ is None:
        return subprocess.DEVNULL
    with contextlib.suppress(OSError):
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return subprocess.DEVNULL
    return None
