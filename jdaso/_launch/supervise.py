"""Restarts a failed job from its last checkpoint, on the hosts that still answer."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence

from .._base.errors import STOPPED_STATUS
from .asked import Asked
from .environment import with_home
from .first_failure import Deaths
from .guard import KILL_SECONDS, LAUNCH, Job
from .guarded import Guarded
from .hosts import answering, placed
from .mpiexec import with_files_in
from .relay import Relay, open_standard_streams, standard_input
from .reports import PATH, say_job_saved

_LEAST_PAUSE, _MOST_PAUSE = 1.0, 120.0
"""Seconds between two starts; doubled after each job that ended without a new checkpoint."""

_LONG_SECONDS = 1800.0
"""A job that ran this long may save in another way."""

_HOSTS_SECONDS = 3600.0
"""Longest wait for hosts that do not answer."""

_LONGEST_PATH = 80
"""Most bytes of the temporary folder's path: a path to the socket may have 107."""

_ORPHAN_SECONDS, _NOTICE_SECONDS = 1.0, 5.0
"""Seconds after a rank has failed: first its forked processes are ended, then the job if its
launcher has not ended it. A launcher waits for a failed rank's pipes, which forked processes hold
open."""

_NOT_STARTED = 127
"""Exit status if the command, or the probe, does not exist. Before the first start that is a
mistake, which no restart fixes; later a file system may be unavailable."""

_LOOK_SECONDS = 1.0

_LACKING = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""Errors of a start for which the command is not to blame."""


class Supervisor:
    """Runs a command until it succeeds, is asked to stop, or has failed too often.

    Args:
        command: the command that starts the ranks; see `placed` for ``{hosts}`` and ``{count}``.
        max_restarts: how often a failed job is restarted. A job that has saved and stopped on
            request (status 75, confirmed by a rank) is restarted without being counted.
        hosts: hosts probed before each start; none if empty.
        min_hosts: a job starts once as many answer.
        probe: the command that probes ``{host}``.
        grace_seconds: how long a job that is asked to stop may take to save.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        max_restarts: int = 0,
        hosts: Sequence[str] = (),
        min_hosts: int = 1,
        probe: str = "ssh -o BatchMode=yes -o ConnectTimeout=5 {host} true",
        grace_seconds: float = 120.0,
    ):
        self.command, self.max_restarts = list(command), max_restarts
        self.hosts, self.min_hosts, self.probe = list(hosts), min_hosts, shlex.split(probe)
        self.grace_seconds = grace_seconds
        open_standard_streams()
        self._relay = Relay()
        self._say = self._relay.say
        self._asked = Asked()
        self._began = False  # whether the command has ever been started
        self._progressed = False  # whether its last start saved a checkpoint, or ran for long

    def run(self) -> int:
        """The exit status of the last start; 128 + the signal's number if it was killed."""
        with self._asked.taken():
            with Guarded(self.grace_seconds, self._relay.sources) as self._guard:
                status = self._run()
            seen = self._asked.count
            self._relay.close(lambda: self._asked.count > seen)
        if status == STOPPED_STATUS and self._asked.to_end():
            say_job_saved()
        return status

    def _run(self) -> int:
        restarts, pause = 0, _LEAST_PAUSE
        while True:
            self._progressed = False
            status, saved = self._start_once()
            if status == 0 or self._asked.to_end():
                return status
            if status == STOPPED_STATUS and saved:
                self._say("the job was asked to stop and has saved; it is started again.")
                self._asked.pause_for(_LEAST_PAUSE)
                if self._asked.to_end():
                    return status
                continue
            if restarts >= self.max_restarts or (status == _NOT_STARTED and not self._began):
                times = "once" if restarts == 1 else f"{restarts} times"
                often = f" and was started again {times}" if restarts else ""
                self._say(f"the job failed (status {status}){often}.")
                return status
            restarts += 1
            pause = _LEAST_PAUSE if self._progressed else pause
            self._say(
                f"the job failed (status {status}); restart {restarts} of "
                f"{self.max_restarts} in {pause:g} s."
            )
            self._asked.pause_for(pause)
            if self._asked.signal is not None:
                return 128 + self._asked.signal
            pause = min(2 * pause, _MOST_PAUSE)

    def _start_once(self) -> tuple[int, bool]:
        """The exit status of one start, and whether the job reports that it has saved."""
        try:
            hosts = self._answering_hosts()
        except (OSError, ValueError) as error:
            advice = "Install it, or give another one with --probe."
            return self._not_started(f"the probe {self.probe[0]}", error, advice), False
        if self._asked.signal is not None:
            return 128 + self._asked.signal, False
        if self.hosts and len(hosts) < self.min_hosts:
            few = f"only {len(hosts)} of {self.min_hosts} hosts answer."
            self._say(few if hosts else "no host answers.")
            return 1, False
        try:
            short = len(os.fsencode(tempfile.gettempdir())) < _LONGEST_PATH
            folder = tempfile.mkdtemp(prefix="jdaso-run-", dir=None if short else "/tmp")
        except OSError as error:
            self._say(f"no folder for temporary files ({error}). Free some space, or set TMPDIR.")
            return 1, False
        try:
            return self._start_in(folder, hosts)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _answering_hosts(self) -> list[str]:
        """The hosts that answer; waits until they are enough, if more than one is needed."""
        pause, limit = _LEAST_PAUSE, time.monotonic() + _HOSTS_SECONDS
        while True:
            hosts = answering(self.hosts, self.probe, self._say, self._asked.to_end)
            short = self.min_hosts > 1 and len(hosts) < self.min_hosts
            if not self.hosts or not short or self._asked.to_end() or time.monotonic() > limit:
                return hosts
            self._say(f"waits for {self.min_hosts - len(hosts)} more of them (--min-hosts).")
            self._asked.pause_for(pause)
            pause = min(2 * pause, _MOST_PAUSE)

    def _start_in(self, folder: str, hosts: Sequence[str]) -> tuple[int, bool]:
        """Starts the job and waits for its end; the folder holds the socket of the ranks."""
        path, job = f"{folder}/socket", Job(uuid.uuid4().hex)
        outer = os.environ.get(LAUNCH)  # our own job is then part of that supervisor's job
        tags = f"{outer}:{job.tag}" if outer else job.tag
        values = {"hosts": ",".join(hosts), "count": str(len(hosts))}
        command = [placed(part, values) for part in self.command] if hosts else self.command
        try:
            deaths = Deaths(path, job, self._asked.wake)
        except OSError as error:
            self._say(
                f"it cannot listen for its ranks at {path} ({error}). Free some space, allow more "
                "open files (ulimit -n), or set TMPDIR."
            )
            return 1, False
        self._relay.look_with(deaths.look)
        self._guard.tell(job)
        try:
            out, err = self._relay.outputs
            process = subprocess.Popen(
                command,
                env=with_files_in(
                    folder, command, with_home(os.environ | {LAUNCH: tags, PATH: path})
                ),
                stdin=standard_input(),
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C reaches this process only, which passes it on
            )
        except (OSError, ValueError) as error:
            deaths.first()
            self._guard.tell(None)
            return self._not_started(command[0], error), False
        self._began, begin = True, time.monotonic()
        job.leader, left, first = process.pid, 0, None
        patience, leave = KILL_SECONDS, 1.0
        try:
            patience = self._see_it_end(process, job, deaths)
            if job.passed_on and job.saves:
                leave = max(leave, self._asked.at + self.grace_seconds - time.monotonic())
        finally:
            if not patience:
                leave = 0.0
            left = job.end(
                lambda: process.poll() is None, patience, leave, hurry=lambda: self._asked.at_once
            )
            self._relay.settle()  # reports of ranks on other hosts arrive in the output
            first = deaths.first()
            self._guard.tell(None)
        self._progressed = deaths.progressed or time.monotonic() > begin + _LONG_SECONDS
        return self._judge(process, job, deaths, left, first), deaths.saved

    def _not_started(self, what: str, error: Exception, advice: str = "") -> int:
        """Reports that a command cannot be started; returns the exit status."""
        lacking = isinstance(error, OSError) and error.errno in _LACKING
        if lacking:
            advice = "Allow more open files and processes (ulimit -n, -u), or free memory."
        self._say(f"{what} cannot be started ({error}). {advice}".rstrip())
        return 1 if lacking else _NOT_STARTED

    def _judge(
        self, process: subprocess.Popen, job: Job, deaths: Deaths, left: int, first: str | None
    ) -> int:
        """The status of a job that has ended; reports anything unusual."""
        if process.returncode is None:
            self._say(f"process {process.pid} could not be ended and is still running.")
        status = 128 + signal.SIGKILL if process.returncode is None else process.returncode
        # If processes may fail one by one, the launcher's status is that of the last one.
        one_by_one = job.speaks or "ulfm" in self.command
        if status == 0 and one_by_one and not deaths.came_through:
            status = 1
        if deaths.saved and (job.passed_on or status == 0):
            status = STOPPED_STATUS  # whatever status a script or a launcher returned
        if left:
            self._say(f"{left} processes that the launcher left behind were ended.")
        if first is not None and not self._asked.to_end() and status != 0 and not deaths.saved:
            self._say(f"{first}.")
        return status if status >= 0 else 128 - status

    def _see_it_end(self, process: subprocess.Popen, job: Job, deaths: Deaths) -> float:
        """Waits until the launcher has ended or must be ended; returns the seconds for that."""
        seen: set[int] = set()  # ranks whose failure has been handled
        while process.poll() is None:
            self._guard.tell(job)
            now = time.monotonic()
            if self._asked.signal is not None:
                if not job.passed_on:
                    deaths.catch_up()
                    self._announce(job)
                job.tell(self._asked.signal)
                if self._asked.at_once:
                    return 0.0
                if now > self._asked.at + self.grace_seconds:
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
                    self._say("the launcher does not end the job; jdaso ends it.")
                    return KILL_SECONDS
            waits = any(now < died + 2 * _NOTICE_SECONDS for died, _ in deaths.dead.values())
            self._asked.pause(_LOOK_SECONDS / 4 if waits else _LOOK_SECONDS)
        return KILL_SECONDS

    def _announce(self, job: Job) -> None:
        """Reports the signal that this process received, and the job's next action."""
        assert self._asked.signal is not None
        name, limit = signal.Signals(self._asked.signal).name, f"{self.grace_seconds:g} s"
        what = "saves and ends" if job.saves else "is asked to end"
        self._say(f"{name}: the job {what}, within {limit}; Ctrl-C (SIGINT) ends it at once.")
