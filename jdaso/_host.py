"""What the launcher, the kernel and the driver say of this process; no MPI, no device, no NumPy."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import re
import select
import shutil
import socket
import stat
import subprocess
import sys
import termios
import time
from pathlib import Path

log = logging.getLogger("jdaso")

_READ_SECONDS = 2.0
_DRIVER_DEVICE = Path("/dev/nvidiactl")
_GPU_NAME = re.compile(r"\d+$|GPU-|MIG-")


def survives_deaths() -> bool:
    """Whether the launcher was told that processes may die (``--with-ft ulfm``)."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable", "") in ("1", "true", "yes")


def speak_out() -> None:
    """Has the launcher read all that this process printed, before the job is ended.

    What still lies in a rank's pipes when a rank ends the job is discarded: last words were lost on
    a busy machine. Waits 2 seconds at most once all is in the pipes; to write into one that is full
    takes as long as for `print`. Terminals, files, and pipes whose reader is gone are not waited
    for, nor pipes where the system cannot tell (only Linux can).
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or replaced by something else
            stream.flush()
    limit = time.monotonic() + _READ_SECONDS
    while any(map(_unread_bytes, (1, 2))) and time.monotonic() < limit:
        time.sleep(0.01)


def _unread_bytes(descriptor: int) -> int:
    """How much was written into a pipe and may yet be read; 0 for what is no pipe."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return 0
        poller = select.poll()
        poller.register(descriptor, 0)
        if poller.poll(0):  # an error: nobody is there to read it
            return 0
        count = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    except OSError:  # closed, or a system that cannot tell
        return 0
    return int.from_bytes(count, sys.byteorder)


def started_as(verb: str) -> bool:
    """Whether this process is ``python -m jdaso VERB`` or ``jdaso VERB``."""
    program, given = sys.argv[0], sys.argv[1:]
    if given[:1] != [verb]:
        return False
    if program == "-m":  # what Python calls it until it has found the module
        before = sys.orig_argv[: len(sys.orig_argv) - len(given)]
        return before[-2:] == ["-m", "jdaso"] or before[-1:] == ["-mjdaso"]
    return Path(program).name == "jdaso" or Path(program).parts[-2:] == ("jdaso", "__main__.py")


def machine() -> str:
    """The same for ranks on one machine: one kernel and one host name (containers have others)."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        kernel = ""
    return f"{socket.gethostname()} {kernel}"


def visible_gpus() -> list[str]:
    """The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    Asks no library that would claim one. As CUDA does it, the list ends where a name is none (-1,
    or the NoDevFiles of some versions of Slurm).
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = (name.strip() for name in chosen.split(","))
        return list(itertools.takewhile(_GPU_NAME.match, names))
    return [str(i) for i in range(len(_uuids()))]


def gpu_identities() -> list[str] | None:
    """The same GPUs by UUID, None where these cannot be had.

    A launcher that gives each rank devices of its own (Slurm's control groups) numbers them from 0
    in each: the numbers say nothing about whether two ranks see the same GPU.
    """
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return None
    uuids, names = _uuids(), visible_gpus()
    if not uuids:  # no driver's tool: the names are all there is
        return names or None
    identities = []
    for name in names:
        if name.isdecimal():
            found = uuids[int(name) : int(name) + 1]
        else:  # a UUID or its first letters, or a part of a GPU (MIG), which has one of its own
            found = [uuid for uuid in uuids if uuid.startswith(name)] or [name]
        if len(found) != 1:
            return None
        identities += found
    return identities or None


def driver_trouble() -> str | None:
    """What NVIDIA's driver says where this host has its devices and it does not work."""
    if os.environ.get("JAX_PLATFORMS") == "cpu" or not _DRIVER_DEVICE.exists():
        return None
    try:
        _list_gpus()
    except subprocess.CalledProcessError as error:
        said = f"{error.stdout or ''}{error.stderr or ''}".strip().splitlines()
        return said[-1] if said else f"nvidia-smi ended with status {error.returncode}"
    except (subprocess.SubprocessError, OSError) as error:
        return str(error)
    return None


def _list_gpus() -> str:
    """What nvidia-smi lists; nothing where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    command = [tool, "--list-gpus"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


def _uuids() -> list[str]:
    """The UUIDs of the GPUs that the driver shows to this process, by their numbers."""
    try:
        listing = _list_gpus()
    except (subprocess.SubprocessError, OSError) as error:
        log.warning("jdaso could not ask nvidia-smi for the GPUs of this host: %s", error)
        return []
    gpus = [line for line in listing.splitlines() if line.startswith("GPU ")]
    return [line.partition("UUID: ")[2].rstrip(") ") or line for line in gpus]
