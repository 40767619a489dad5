"""GPUs of this host as the driver lists them; no CUDA, no JAX."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import subprocess
from pathlib import Path

log = logging.getLogger("jdaso")
_DRIVER_DEVICE = Path("/dev/nvidiactl")
_GPU_NAME = re.compile(r"\d+$|GPU-|MIG-")


def visible_gpus() -> list[str]:
    """The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    Uses no library that would claim a GPU. As in CUDA, the list ends at the first invalid name (-1,
    or the NoDevFiles of some versions of Slurm).
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = (name.strip() for name in chosen.split(","))
        return list(itertools.takewhile(_GPU_NAME.match, names))
    return [str(i) for i in range(len(_uuids()))]


def gpu_identities() -> list[str] | None:
    """The same GPUs by UUID; none if the process is to have none; None if UUIDs are not available.

    A launcher that gives each rank its own devices (Slurm's control groups) numbers them from 0 in
    each rank, so the numbers cannot show whether two ranks see the same GPU.
    """
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return []
    names = visible_gpus()
    if not names and "CUDA_VISIBLE_DEVICES" in os.environ:
        return []
    uuids = _uuids()
    if not uuids:  # nvidia-smi is missing: only the names are known
        return names or None
    identities = []
    for name in names:
        if name.isdecimal():
            found = uuids[int(name) : int(name) + 1]
        else:  # a UUID or its first letters, or a part of a GPU (MIG), which has its own UUID
            found = [uuid for uuid in uuids if uuid.startswith(name)] or [name]
        if len(found) != 1:
            return None
        identities += found
    return identities


def driver_trouble() -> str | None:
    """The error of NVIDIA's driver if this host has its devices but the driver does not work."""
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
    """The output of ``nvidia-smi --list-gpus``; empty without nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    command = [tool, "--list-gpus"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


def _uuids() -> list[str]:
    """The UUIDs of the GPUs that the driver shows to this process, in order of their numbers."""
    try:
        listing = _list_gpus()
    except (subprocess.SubprocessError, OSError) as error:
        log.warning("jdaso could not ask nvidia-smi for the GPUs of this host: %s", error)
        return []
    gpus = [line for line in listing.splitlines() if line.startswith("GPU ")]
    return [line.partition("UUID: ")[2].rstrip(") ") or line for line in gpus]
