"""A lock on a folder: held by one process until it ends, never inherited by a forked one."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

from .._launch.guard import LAUNCH
from .._launch.paths import shown
from ._files import CheckpointError

log = logging.getLogger("jdaso")

_held: dict[tuple[int, int], Lock] = {}
"""Locks of this process, by device and inode."""

_LOST_SECONDS, _PAUSE_SECONDS = 300.0, 1.0
"""Longest wait of a restarted job for the lock of another host: a file server keeps the locks of a
host that has failed until their lease ends."""


class Lock:
    """The file ``lock`` of a folder, locked until `close` or the end of the process.

    The kernel's lock belongs to the open file, which forked processes share. They close theirs at
    once, and `close` unlocks the file for any process that may still have it open.

    Args:
        folder: the folder.
        waits: whether to wait, under ``jdaso run``, for a lock of another host, which may be that
            of the job's last start.

    Raises:
        OSError: the file cannot be opened.
        CheckpointError: another run, or this process, holds the lock.
    """

    def __init__(self, folder: Path, *, waits: bool = False):
        self._file: Any = open(folder / "lock", "a+", errors="replace")  # noqa: SIM115
        self._key = _key(os.fstat(self._file.fileno()))
        if self._key in _held:
            self._file.close()
            raise CheckpointError(
                f"This program uses {shown(folder)} already ({_own_name()}), until it closes the "
                "session that does. Give each run a folder of its own, or a session of its own."
            )
        try:
            if not self._take(folder, waits and LAUNCH in os.environ):
                text = self._who_has_it(folder)
                self._file.close()
                raise CheckpointError(text)
        except OSError as error:
            log.warning(
                "%s does not support locks (%s); make sure that no other run uses it.",
                shown(folder),
                error,
            )
        _held[self._key] = self

    def _take(self, folder: Path, waits: bool) -> bool:
        """Returns whether this process has the lock now.

        Raises:
            OSError: the file system does not support locks.
        """
        begin = time.monotonic()
        logged = False
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            here = self._owner().endswith(f" on host {socket.gethostname()}")
            if here or not waits or time.monotonic() > begin + _LOST_SECONDS:
                return False
            if not logged:
                logged = True
                log.warning(
                    "%s is locked by %s, which may have been this job's and have failed with its "
                    "host. Waits for the lock, %g s at most.",
                    shown(folder),
                    self._owner(),
                    _LOST_SECONDS,
                )
            time.sleep(_PAUSE_SECONDS)

    def _owner(self) -> str:
        self._file.seek(0)
        return self._file.read().strip() or "a process that has not written its name yet"

    def sign(self) -> None:
        """Writes the owner's name into the file, for the message that another run gets."""
        self._file.truncate(0)
        self._file.write(f"{_own_name()}\n")
        self._file.flush()

    def is_at(self, folder: Path) -> bool:
        """Returns whether this is still the lock of the folder, which may have been replaced."""
        with contextlib.suppress(OSError):
            return self._key == _key(os.stat(folder / "lock"))
        return False

    def close(self) -> None:
        """Releases the lock."""
        if _held.pop(self._key, None) is None:  # closed, or left to the parent process
            return
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            self._file.close()

    def leave(self) -> None:
        """Closes the file without unlocking it; for a forked process."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _who_has_it(self, folder: Path) -> str:
        who = self._owner()
        here = _openers(folder / "lock") if who.endswith(f" on host {socket.gethostname()}") else []
        if here and not any(who.startswith(f"process {pid} on ") for pid in here):
            # The owner has ended, but a process that it forked without Python's hooks has the file.
            who = f"process {here[0]}, started by {who}"
        return (
            f"Another run uses {shown(folder)} ({who}). Give each run a folder of its own, or end "
            "the other. To read its checkpoints meanwhile, use jdaso.checkpoint.Reader."
        )


def _own_name() -> str:
    return f"process {os.getpid()} on host {socket.gethostname()}"


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _openers(path: Path) -> list[int]:
    """Returns other processes of this host that have a file open, if this user may see them."""
    found, wanted = [], os.path.realpath(path)
    for process in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError):  # another user's, or it has ended
            links = os.listdir(f"/proc/{process}/fd")
            # Only the links are read: following one could touch a file system that hangs.
            if any(os.readlink(f"/proc/{process}/fd/{link}") == wanted for link in links):
                found.append(int(process))
    return sorted(set(found) - {os.getpid()})


def _leave_to_parent() -> None:
    for lock in _held.values():
        lock.leave()
    _held.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
