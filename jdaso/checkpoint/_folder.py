"""The folder of a run's checkpoints: whose it is, what is complete in it, and what stays."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from . import _files
from ._files import CheckpointError, Manifest

log = logging.getLogger("jdaso")

_NAME = re.compile(r"step_(\d+)-(\d+)")
_SEEN_SECONDS = 30.0
"""How long a shared file system may take to show one node what another wrote."""


class Folder:
    """Checkpoints in a folder, ``step_STEP-NUMBER`` each, numbered by the saves of all runs.

    Args:
        path: where; made by `take`.
        keep_last: how many complete ones stay.
        keep_best: how many of the best stay besides.
        best: ``"max"`` or ``"min"``: which scores are good.
    """

    def __init__(self, path: Path, *, keep_last: int, keep_best: int, best: str):
        self.path, self._keep_last, self._keep_best = path, keep_last, keep_best
        self._sign = 1 if best == "max" else -1
        self._lock: Any = None

    def take(self, run: str) -> Path:
        """Makes it this run's own, until `give_back` or the end of the process.

        Returns:
            A file by which others see that the folder is theirs too; to be removed then.

        Raises:
            OSError: it cannot be written to.
            CheckpointError: another run uses it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.path / "lock")
        for old in self.path.glob("seen-*"):  # of a start that was cut short
            old.unlink(missing_ok=True)
        token = self.token(run)
        token.touch()
        return token

    def token(self, run: str) -> Path:
        """The file that `take` makes."""
        return self.path / f"seen-{run}"

    def give_back(self) -> None:
        """Lets other runs use it."""
        if self._lock is not None:
            self._lock.close()

    def of(self, step: int, number: int) -> Path:
        """Where a save goes."""
        return self.path / f"step_{step:08d}-{number:06d}"

    def last_number(self) -> int:
        """The number of the last save, complete or not; 0 where there is none."""
        return max((_number(path) for path in self._all()), default=0)

    def complete(self) -> list[tuple[Path, Manifest]]:
        """Complete checkpoints, oldest first."""
        found = [(path, _files.complete(path)) for path in self._all()]
        whole = [(path, manifest) for path, manifest in found if manifest is not None]
        return sorted(whole, key=lambda x: x[1].number)

    def prune(self) -> None:
        """Removes what is neither among the last nor among the best, nor being written."""
        complete = self.complete()
        scored = [x for x in complete if x[1].score == x[1].score is not None]
        scored.sort(key=lambda x: self._sign * (x[1].score or 0.0))
        stay = complete[-self._keep_last :]
        stay += scored[-self._keep_best :] if self._keep_best else []
        newest = complete[-1][1].number if complete else 0
        kept = {path for path, _ in stay}
        whole = {path for path, _ in complete}
        for path in self._all():
            written = path not in whole and _number(path) > newest
            if path not in kept and not written:
                _files.remove(path)

    def _all(self) -> list[Path]:
        return [path for path in self.path.iterdir() if _NAME.fullmatch(path.name)]


def appears(path: Path) -> bool:
    """Whether a file is seen; a shared file system may take its time."""
    end = time.monotonic() + _SEEN_SECONDS
    while not path.exists():
        if time.monotonic() > end:
            return False
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # a look at the folder makes NFS ask again
        time.sleep(0.05)
    return True


def _number(path: Path) -> int:
    """The number of a save, by its folder's name."""
    return int(path.name.rpartition("-")[2])


def _lock(path: Path) -> Any:
    """A lock that ends with the process that holds it."""
    file = open(path, "a+")  # noqa: SIM115
    own = f"process {os.getpid()} on host {socket.gethostname()}"
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not isinstance(error, BlockingIOError):
            log.warning("%s has no locks (%s); see that no other run uses it.", path.parent, error)
            return file
        file.seek(0)
        holder = file.read().strip()
        if holder == own:
            raise CheckpointError(
                f"This program uses {path.parent} already ({own}), until it closes the session "
                "that does. Give each run a folder of its own, or a session of its own."
            ) from None
        raise CheckpointError(
            f"Another run uses {path.parent} ({holder}). Give each run a folder of its own, or end "
            "the other."
        ) from None
    file.truncate(0)
    file.write(f"{own}\n")
    file.flush()
    return file
