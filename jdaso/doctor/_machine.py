"""Checks of a rank's machine: host, cores, memory, GPUs, and the folder of checkpoints."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from .._launch import environment as _environment
from .._launch import gpus as _host
from ._findings import Finding, numbered

CHECKPOINTS = "checkpoint folder"

_LEAST_MEMORY = 1e9
_LEAST_DISK = 1e9
_SHARED_MEMORY = "/dev/shm"
_LEAST_SHARED_BYTES = 16 * 2**20
"""Per rank of a host, for Open MPI; MPICH needs a third of that, and crashes without it."""


def cores() -> list[int]:
    """Returns the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical(cpus: Iterable[int]) -> list[int]:
    """Maps hardware threads to cores, each named by its first thread: launchers bind cores."""
    found = set()
    for cpu in cpus:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            found.add(int(re.split("[-,]", path.read_text())[0]))
        except (OSError, ValueError):
            found.add(cpu)
    return sorted(found)


def machine(gpus: list[str] | None) -> Iterator[Finding]:
    """Yields findings about this machine as this process sees it."""
    yield Finding("host", socket.gethostname())
    mine, all_of_them = cores(), os.cpu_count() or 1
    yield Finding("cores", f"{len(mine)} of {all_of_them} ({numbered(mine)})")
    yield from _memory()
    yield from shared_memory()
    yield _home()
    if said := _host.driver_trouble():
        remedy = (
            "Reload or mend NVIDIA's driver (a restart of the host does it after an update), or "
            "set JAX_PLATFORMS=cpu to leave GPUs out."
        )
        yield Finding("GPUs", f"the driver does not work: {said}", False, remedy)
    else:
        yield Finding("GPUs", f"{len(gpus)}: {', '.join(gpus)}" if gpus else "none are used")


def _memory() -> Iterator[Finding]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return
    about = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
    total, free = about["MemTotal"], about.get("MemAvailable", about["MemTotal"])
    for path in _of_cgroups("memory", "memory.max", "memory.limit_in_bytes"):
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):  # the file is missing, or holds "max"
            continue
    found = f"{total / 1e9:.0f} GB"
    if min(free, total) >= _LEAST_MEMORY:
        yield Finding("memory", found)
    else:
        remedy = "End other programs on this host, or ask the batch system for more memory."
        yield Finding("memory", f"{found}, only {free / 1e9:.1f} GB free", False, remedy)


def shared_memory() -> Iterator[Finding]:
    """Checks that MPI has space for the messages between the ranks of a host."""
    try:
        about = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return
    free, ranks = about.f_bavail * about.f_frsize, _environment.local_ranks()
    found = f"{free / 1e6:.1f} of {about.f_blocks * about.f_frsize / 1e6:.1f} MB free"
    found += f" in {_SHARED_MEMORY}"
    if free >= ranks * _LEAST_SHARED_BYTES:
        yield Finding("shared memory", found if free < 1e9 else f"{free / 1e9:.0f} GB free")
        return
    need = ranks * _LEAST_SHARED_BYTES / 1e6
    remedy = (
        f"MPI keeps the messages between a host's ranks there, and may end by SIGBUS. It wants "
        f"{need:.0f} MB here: remove files of ended jobs, or give the container more (docker run "
        "--shm-size=1g, or --ipc=host; mount -o remount,size=1g /dev/shm)."
    )
    yield Finding("shared memory", f"only {found}", False, remedy)


def _home() -> Finding:
    """Checks the home folder: Open MPI needs HOME to start, and JAX keeps caches there."""
    home = os.environ.get("HOME", "")
    if not home:
        found = "HOME is not set: jdaso does not need it, Open MPI's mpiexec does"
        return Finding("home folder", found)
    if not os.path.isdir(home):
        return Finding("home folder", f"{home} is not there; jdaso does not need it")
    read_only = "" if os.access(home, os.W_OK) else " cannot be written; jdaso does not need it"
    return Finding("home folder", f"{home}{read_only}")


def allowed() -> list[int]:
    """Returns the cores of this job on this machine, which a batch system may limit."""
    for path in _of_cgroups("cpuset", "cpuset.cpus.effective", "cpuset.effective_cpus"):
        try:
            spans = [span.partition("-") for span in path.read_text().strip().split(",") if span]
        except OSError:
            continue
        if spans:
            return [k for a, _, b in spans for k in range(int(a), int(b or a) + 1)]
    return list(range(os.cpu_count() or 1))


def _of_cgroups(controller: str, unified: str, legacy: str) -> Iterator[Path]:
    """Yields a file of this process's control group and those around it; both Linux versions."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for _, controllers, below in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if controllers and controller not in controllers.split(","):
            continue
        root, name = Path("/sys/fs/cgroup", controllers and controller), legacy
        if not controllers:
            name = unified
        group = root / below.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                yield folder / name


def missing_folders(folder: str | Path) -> list[Path]:
    """Returns the missing folders among `folder` and those around it, the innermost first."""
    path = Path(folder).absolute()
    return [each for each in (path, *path.parents) if not os.path.exists(each)]


def write_in(folder: str | Path) -> tuple[Finding, str | None]:
    """Tests whether a file can be written; returns its path for the other ranks to look for."""
    what, path = CHECKPOINTS, None
    found = "can be made and written" if missing_folders(folder) else "can be written"
    try:
        if os.path.exists(folder) and not os.path.isdir(folder):
            return Finding(what, f"{folder} is a file", False, "Name a folder."), path
        Path(folder).mkdir(parents=True, exist_ok=True)
        file, path = tempfile.mkstemp(prefix=".jdaso-doctor-", dir=folder)
        with os.fdopen(file, "w") as written:
            written.write("written by jdaso doctor\n")
            os.fsync(written.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        remedy = (
            "Choose a folder on a file system that is mounted for writing and that this user may "
            "write to, or fix its permissions (chown, chmod); compute nodes often mount home "
            "read-only."
        )
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "Free space there, or raise the quota." if full else remedy
        return Finding(what, f"{folder} cannot be written: {error.strerror}", False, remedy), path
    if free < _LEAST_DISK:
        remedy = "Free space there, or choose another folder."
        return Finding(what, f"{folder}: {free / 1e9:.1f} GB free", False, remedy), path
    return Finding(what, f"{folder} {found}"), path
