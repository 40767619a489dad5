"""One launch of processes with a time limit: all of them end, whatever happens."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..._launch.guard import LAUNCH, Job
from ..._launch.guarded import Guarded
from ..._launch.mpiexec import undisturbed, with_files_in

_END_SECONDS = 3.0
"""Time for a launcher to end its ranks, also those on other hosts, once a launch is over."""


@dataclass(frozen=True)
class Ended:
    """The end of a launch.

    Attributes:
        status: exit status; minus the number of the signal, if one ended the launch.
        timed_out: whether the limit has passed.
        output: the text of its standard output.
        errors: the text of its standard error.
    """

    status: int
    timed_out: bool
    output: str
    errors: str


def run_to_end(
    command: Sequence[str], environment: Mapping[str, str], limit_seconds: float, guard: Guarded
) -> Ended:
    """Runs a command to its end or its limit, and ends every process that it has started.

    The processes have a session of their own, and a tag in their environment, which also finds
    those that have left the session. If this process is killed, the guard ends them. A second
    signal does not cut the end short.

    Raises:
        OSError: the command cannot be started.
    """
    tag = f"study-{uuid.uuid4().hex}"
    job = Job(tag, speaks=True)
    with tempfile.TemporaryDirectory(prefix="jdaso-study-", ignore_cleanup_errors=True) as folder:
        files = Path(folder, "output"), Path(folder, "errors")
        tagged = {**with_files_in(folder, command, environment), LAUNCH: tag}
        guard.tell(job)
        with files[0].open("wb") as output, files[1].open("wb") as errors:
            process = subprocess.Popen(
                list(command),
                env=tagged,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        job.leader = process.pid
        timed_out = _wait(process, job, limit_seconds, guard)
        texts = [path.read_bytes().decode(errors="replace") for path in files]
        return Ended(process.returncode, timed_out, *texts)


def _wait(process: subprocess.Popen, job: Job, limit_seconds: float, guard: Guarded) -> bool:
    """Waits for the end of the launch, or brings it about; returns whether the limit has passed.

    A thread detects the end at once; `Popen.wait` with a limit polls every 50 ms.
    """
    waiter = threading.Thread(target=process.wait, daemon=True)
    try:
        guard.tell(job)
        waiter.start()
        waiter.join(limit_seconds)
        if waiter.is_alive():
            for pid in job.left():  # killed ranks leave their files in /dev/shm
                job.note_files(pid)
        return waiter.is_alive()
    finally:
        with undisturbed():
            job.end(lambda: process.poll() is None, _END_SECONDS)
            with contextlib.suppress(subprocess.TimeoutExpired):  # blocked in a system call
                process.wait(_END_SECONDS)
            guard.tell(None)  # not before: should this end be missed, the guard makes up for it
