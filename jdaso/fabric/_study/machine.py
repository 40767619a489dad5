"""The machine and the commit that rows record; nothing here identifies a host or a user."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

_GIT_SECONDS = 20.0


def machine() -> dict[str, Any]:
    """Returns processor, cores, memory and kernel of this machine."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": pages,
        "kernel": platform.release(),
    }


def load() -> float:
    """Returns the mean number of runnable processes in the last minute."""
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """Returns the commit of jdaso's checkout, with a plus if files differ; else "unknown"."""
    folder = Path(__file__).parents[3]
    if not (folder / ".git").exists():
        return "unknown"
    found = _git(folder, "rev-parse", "--short", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--", "jdaso")
    return f"{found}+" if found and changed else found or "unknown"


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
