"""A limit on the memory of all processes of a launch, which the kernel itself enforces.

The processes run in a control group of their own, of version 2 or 1, whichever controls memory on
this machine. If they take more than the limit together, the kernel kills one of them, and nothing
else on the machine. RLIMIT_AS would be another limit: it counts addresses, of which JAX reserves
many times what it uses, and each process by itself. So without a control group a limit is refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from .checks import StudyError

log = logging.getLogger("jdaso")

_NAME = "jdaso-study-"
_KILLS_HERE = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
_KILLS_OF_GROUP = ("memory.events", "memory.oom_control")
_JOIN = 'echo 0 > "$0" && exec "$@"'
_PROBE_SECONDS, _LEAVE_SECONDS, _LOOK_SECONDS = 20.0, 2.0, 0.02
_numbers = count()


@dataclass(frozen=True)
class LaunchMemory:
    """The memory of a launch.

    Attributes:
        before: words in front of a command that put it under the limit.
        kills: returns the number of processes that the kernel has killed so far for lack of memory.
    """

    before: Sequence[str]
    kills: Callable[[], int]


@contextlib.contextmanager
def held(limit_bytes: int | None) -> Iterator[LaunchMemory]:
    """Holds the memory of one launch; without a limit, counts the kernel's kills on this machine.

    Raises:
        StudyError: no control group can be made.
    """
    if limit_bytes is None:
        yield LaunchMemory((), lambda: _count(_KILLS_HERE))
        return
    group = _make()
    try:
        _limit(group, limit_bytes)
        before = ("sh", "-c", _JOIN, str(group / "cgroup.procs"))
        yield LaunchMemory(before, lambda: _count(group / name for name in _KILLS_OF_GROUP))
    finally:
        _remove(group)


def require(limit_bytes: int | None) -> None:
    """Raises unless this process can hold the memory of another one to a limit.

    Raises:
        StudyError: this process cannot; the text has the reason.
    """
    with held(limit_bytes) as memory:
        command = [*memory.before, "true"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    if done.returncode != 0:
        raise _refused(done.stderr.strip())


def _refused(reason: str) -> StudyError:
    return StudyError(
        f"limit_bytes needs a control group of the kernel with a limit of its own: {reason}. Run "
        "as root, or in a group that is yours (systemd-run --user --scope -p Delegate=yes ...), or "
        "leave limit_bytes out and let the scheduler limit the job."
    )


def _count(files: Iterable[Path]) -> int:
    total = 0
    for path in files:
        with contextlib.suppress(OSError):
            found = (line.split() for line in path.read_text().splitlines())
            total += sum(int(words[1]) for words in found if words[0] == "oom_kill")
    return total


def _make() -> Path:
    """Makes a control group whose memory can be limited, as near to this process as possible."""
    reason = "no hierarchy here has the controller memory"
    for parent in _groups_of_this_process():
        _remove_leftovers(parent)
        group = parent / f"{_NAME}{os.getpid()}-{next(_numbers)}"
        try:
            group.mkdir()
            if any((group / name).exists() for name, _ in _limits(0)):
                return group
            group.rmdir()
        except OSError as error:
            reason = str(error)
    raise _refused(reason)


def _groups_of_this_process() -> Iterator[Path]:
    """The control groups of this process that may limit memory, each with those above it."""
    own = dict(line.split(":", 2)[1:] for line in _lines("/proc/self/cgroup"))
    for _, point, kind, options, *_rest in map(str.split, _lines("/proc/self/mounts")):
        first = kind == "cgroup" and "memory" in options.split(",")
        names = [name for name in own if ("memory" in name.split(",") if first else not name)]
        if first or kind == "cgroup2":
            group, top = Path(point + own[names[0]]) if names else Path(point), Path(point)
            group = group if group.is_dir() else top
            yield from (one for one in (group, *group.parents) if one.is_relative_to(top))


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def _limits(limit_bytes: int) -> list[tuple[str, int]]:
    """File of a limit -> its value, for both versions; without swap."""
    return [
        ("memory.max", limit_bytes),
        ("memory.swap.max", 0),
        ("memory.limit_in_bytes", limit_bytes),
        ("memory.memsw.limit_in_bytes", limit_bytes),
    ]


def _limit(group: Path, limit_bytes: int) -> None:
    for name, value in _limits(limit_bytes):
        if (group / name).exists():
            (group / name).write_text(str(value))


def _remove(group: Path) -> None:
    """Removes a group once its processes have ended."""
    end = time.monotonic() + _LEAVE_SECONDS
    while True:
        try:
            return group.rmdir()
        except OSError as error:
            if time.monotonic() > end:
                log.warning("The control group %s is left behind: %s", group, error)
                return
            time.sleep(_LOOK_SECONDS)


def _remove_leftovers(parent: Path) -> None:
    """Removes empty groups of studies that were killed."""
    for path in parent.glob(f"{_NAME}*-*"):
        if not Path("/proc", path.name[len(_NAME) :].split("-")[0]).exists():
            with contextlib.suppress(OSError):
                path.rmdir()
