"""Numbers of clusters, and the removal of the network namespaces of one.

Each cluster holds the lock of its number, which the kernel releases however the process ends, and
records each name before creating it. So the remains of a killed process are known, and the next
call removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("jdaso")


def _state() -> Path:
    """The folder of clusters: where programs may be started, as each has a launcher."""
    for place in ("/run", "/var/lib"):
        with contextlib.suppress(OSError):
            if not os.statvfs(place).f_flag & os.ST_NOEXEC:
                return Path(place, "jdaso")
    return Path("/run/jdaso")


STATE = _state()
SETTINGS = Path("/etc/netns")  # `ip netns exec` overlays these files on /etc
_NUMBERS = 32  # the most clusters at a time
_COMMAND_SECONDS = 30.0


class ClusterError(RuntimeError):
    """The cluster could not be created, or its links do not have the requested rate."""


def remove_leftovers() -> int:
    """Removes clusters whose process ended without doing so; returns their number."""
    removed = 0
    for number in range(_NUMBERS):
        if not (STATE / f"cluster-{number}").exists():
            continue
        try:
            with _lock(number):
                remove(number)
                removed += 1
        except BlockingIOError:  # its process still runs
            continue
        except (ClusterError, OSError, subprocess.SubprocessError) as error:
            log.warning("The remains of an emulated cluster could not be removed: %s", error)
    return removed


def require_tools() -> None:
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if sys.platform != "linux" or missing:
        raise ClusterError(
            "An emulated cluster is made of Linux network namespaces by the commands ip, tc and "
            f"unshare; not found here: {', '.join(missing) or 'Linux'}. Install iproute2 and "
            "util-linux (Debian: apt install iproute2)."
        )
    if os.geteuid() != 0:
        raise ClusterError(
            "An emulated cluster is made of network namespaces, which only root may make: run the "
            "same command with sudo, or in a container with the capabilities SYS_ADMIN and "
            "NET_ADMIN."
        )


@contextlib.contextmanager
def _lock(number: int) -> Iterator[None]:
    """Holds a number; raises BlockingIOError if another process does."""
    STATE.mkdir(exist_ok=True)
    file = os.open(STATE / f"cluster-{number}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    _held.add(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        _held.discard(file)
        os.close(file)


_held: set[int] = set()


def _leave_locks_to_parent() -> None:
    for file in _held:
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_leave_locks_to_parent)


@contextlib.contextmanager
def own_number() -> Iterator[int]:
    remove_leftovers()
    for number in range(_NUMBERS):
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_lock(number))
            except BlockingIOError:
                continue
            if (STATE / f"cluster-{number}").exists():  # remains that cannot be removed
                continue
            yield number
            return
    raise ClusterError(f"{_NUMBERS} emulated clusters run already. End one of them.")


def remove(number: int) -> None:
    """Ends the processes in a number's namespaces and removes the namespaces, deferring signals."""
    folder, failed = STATE / f"cluster-{number}", []
    with _signals_later():
        listed = folder / "namespaces"
        names = listed.read_text().split() if listed.exists() else []
        for name in names:
            try:
                if name in namespaces():
                    _end_processes(name)
                    ip("netns", "delete", name)
                shutil.rmtree(SETTINGS / name, ignore_errors=True)
            except (ClusterError, OSError, subprocess.SubprocessError) as error:
                failed.append(str(error))
        if failed:
            raise ClusterError(" ".join(failed))
        shutil.rmtree(folder, ignore_errors=True)


def _end_processes(namespace: str) -> None:
    limit = time.monotonic() + 10
    while pids := ip("netns", "pids", namespace).split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > limit:
            raise ClusterError(f"Processes {', '.join(pids)} in {namespace} do not end.")
        time.sleep(0.02)


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Defers signals that would end this process until the body is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, lambda number, _: came.append(number)) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler or signal.SIG_DFL)
        for number in came[:1]:
            signal.raise_signal(number)


def namespaces() -> list[str]:
    return [line.split()[0] for line in ip("netns", "list").splitlines() if line.strip()]


def ip(*words: str) -> str:
    return run("ip", *words)


def run(*words: str) -> str:
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        start_new_session=True,  # only this process handles Ctrl-C
    )
    if done.returncode != 0:
        raise ClusterError(
            f"The kernel refused to make the emulated cluster. {shlex.join(words)}: "
            f"{done.stderr.strip() or done.returncode}"
        )
    return done.stdout
