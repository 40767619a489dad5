"""The folder of a run's checkpoints: whose it is, what is complete in it, and what stays."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from pathlib import Path

from .._launch.paths import shown
from . import _files
from ._files import CheckpointError, Manifest
from ._lock import Lock

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
        self._lock: Lock | None = None
        self._device: int | None = None
        self.last_number = 0  # of the saves that were there when it was taken

    def take(self, run: str) -> Path:
        """Makes it this run's own, until `give_back` or the end of the process.

        What saves that were cut short have left is removed. So no node may be writing.

        Returns:
            A file by which others see that the folder is theirs too; to be removed then.

        Raises:
            OSError: it cannot be written to.
            CheckpointError: another run uses it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if self._lock is None or not self._lock.is_at(self.path):
            self.give_back()
            self._lock = Lock(self.path)
        self.last_number = max(map(_number, self._all()), default=0)
        self.sweep(self.last_number)
        self._lock.sign()  # a full disk has room now
        for old in self.path.glob("seen-*"):  # of a start that was cut short
            old.unlink(missing_ok=True)
        token = self.token(run)
        token.touch()
        return token

    def sweep(self, last: int) -> None:
        """Removes what saves up to number `last` have left that were cut short.

        Else they would keep the next one from finding room. None of them may still be written.
        """
        for path in self._all():
            if _number(path) <= last and _files.is_cut_short(path):
                log.warning("%s is of a save that was cut short: removed.", shown(path))
                _files.remove(path)

    def sweep_if_free(self) -> None:
        """`sweep`, of a folder that no run uses now."""
        with contextlib.suppress(OSError, CheckpointError):
            lock = Lock(self.path)
            try:
                self.sweep(sys.maxsize)
            finally:
                lock.close()

    def sweep_own(self, node: int, last: int) -> None:
        """Removes a node's parts of saves up to number `last` that failed on another node."""
        for path in self._all():
            if _number(path) <= last and _files.has_failed(path):
                _files.remove_part(path, node)

    def token(self, run: str) -> Path:
        """The file that `take` makes."""
        return self.path / f"seen-{run}"

    def give_back(self) -> None:
        """Lets other runs use it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def remember(self) -> None:
        """Notes on which file system it is, so that it is not made again on another one."""
        with contextlib.suppress(OSError):
            self._device = self.path.stat().st_dev

    def make_again(self) -> None:
        """Makes the folder anew where it was deleted under the run; called before each save.

        Raises:
            OSError: it cannot be made, or what is there now is no folder.
            CheckpointError: another run has made it anew, and uses it.
        """
        if not self.path.is_dir():
            above = next(path for path in self.path.parents if os.path.exists(path))
            if self._device not in (None, above.stat().st_dev):
                raise OSError(f"its file system is not mounted any more, and {above} is of another")
            self.path.mkdir(parents=True, exist_ok=True)
            log.error("%s was deleted, with all checkpoints. It is made again.", shown(self.path))
        if self._lock is not None and not self._lock.is_at(self.path):
            self._lock.close()
            self._lock = Lock(self.path)
            self._lock.sign()

    def of(self, step: int, number: int) -> Path:
        """Where a save goes."""
        return self.path / f"step_{step:08d}-{number:06d}"

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
        try:
            return [path for path in self.path.iterdir() if _NAME.fullmatch(path.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"{shown(self.path)} cannot be read: {error}.") from error


def appears(path: Path) -> bool:
    """Whether a file is seen; a shared file system may take its time."""
    end = time.monotonic() + _SEEN_SECONDS
    while not os.path.exists(path):  # False too where one may not look
        if time.monotonic() > end:
            return False
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # a look at the folder makes NFS ask again
        time.sleep(0.05)
    return True


def _number(path: Path) -> int:
    """The number of a save, by its folder's name."""
    return int(path.name.rpartition("-")[2])
