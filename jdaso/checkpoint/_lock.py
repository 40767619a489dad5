"""A lock on a folder: held by one process until it ends, never inherited by a forked one."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
from pathlib import Path
from typing import Any

from .._launch.paths import shown
from ._files import CheckpointError

log = logging.getLogger("jdaso")

_held: dict[tuple[int, int], Lock] = {}
"""Locks of this process, by device and inode."""


class Lock:
    """The file ``lock`` of a folder, locked until `close` or the end of the process.

    The kernel's lock belongs to the open file, which forked processes share. They close theirs at
    once, and `close` unlocks the file for any process that may still have it open.

    Raises:
        OSError: the file cannot be opened.
        CheckpointError: another run, or this process, holds the lock.
    """

    def __init__(self, folder: Path):
        self._file: Any = open(folder / "lock", "a+", errors="replace")  # noqa: SIM115
        self._key = _key(os.fstat(self._file.fileno()))
        if self._key in _held:
            self._file.close()
            raise CheckpointError(
                f"This program uses {shown(folder)} already ({_own_name()}), until it closes the "
                "session that does. Give each run a folder of its own, or a session of its own."
            )
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                text = self._who_has_it(folder)
                self._file.close()
                raise CheckpointError(text) from None
            log.warning(
                "%s does not support locks (%s); make sure that no other run uses it.",
                shown(folder),
                error,
            )
        _held[self._key] = self

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
        self._file.seek(0)
        who = self._file.read().strip() or "a process that has not written its name yet"
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
