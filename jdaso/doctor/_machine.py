"""The machine of a rank: host, cores, memory, GPUs, and the folder of checkpoints."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ._findings import Finding, numbered

_LEAST_MEMORY = 1e9
_LEAST_DISK = 1e9


def cores() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical(cpus: Iterable[int]) -> list[int]:
    """The cores that these hardware threads are of, each by its first: launchers bind cores."""
    found = set()
    for cpu in cpus:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            found.add(int(re.split("[-,]", path.read_text())[0]))
        except (OSError, ValueError):
            found.add(cpu)
    return sorted(found)


def machine(gpus: list[str] | None) -> Iterator[Finding]:
    """Findings about this machine as this process sees it."""
    yield Finding("host", socket.gethostname())
    mine, all_of_them = cores(), os.cpu_count() or 1
    yield Finding("cores", f"{len(mine)} of {all_of_them} ({numbered(mine)})")
    yield from _memory()
    yield Finding("GPUs", f"{len(gpus)}: {', '.join(gpus)}" if gpus else "none are used")


def _memory() -> Iterator[Finding]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return
    about = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
    total, free = about["MemTotal"], about.get("MemAvailable", about["MemTotal"])
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # there is none, or it is "max"
            continue
    found = f"{total / 1e9:.0f} GB"
    if min(free, total) >= _LEAST_MEMORY:
        yield Finding("memory", found)
    else:
        remedy = "End other programs on this host, or ask the batch system for more memory."
        yield Finding("memory", f"{found}, only {free / 1e9:.1f} GB free", False, remedy)


def write_in(folder: str) -> tuple[Finding, str | None]:
    """Whether a file can be written there; and its path, for the other ranks to look for."""
    what, path = "checkpoint folder", None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        file, path = tempfile.mkstemp(prefix=".jdaso-doctor-", dir=folder)
        with os.fdopen(file, "w") as written:
            written.write("written by jdaso doctor\n")
            os.fsync(written.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        remedy = (
            "Choose a folder on a file system that is mounted for writing and that this user may "
            "write to, or mend its rights (chown, chmod); compute nodes often mount home read-only."
        )
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "Free space there, or raise the quota." if full else remedy
        return Finding(what, f"{folder} cannot be written: {error.strerror}", False, remedy), path
    if free < _LEAST_DISK:
        remedy = "Free space there, or choose another folder."
        return Finding(what, f"{folder}: {free / 1e9:.1f} GB free", False, remedy), path
    return Finding(what, f"{folder} can be written"), path
