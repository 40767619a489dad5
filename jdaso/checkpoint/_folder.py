"""The folder of a run's checkpoints: its lock, its complete saves, and the ones to keep."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from .._launch.paths import shown
from . import _complete
from ._files import CheckpointError, DamagedError, Manifest
from ._lock import Lock

log = logging.getLogger("jdaso")

_NAME = re.compile(r"step_(\d+)-(\d+)")
_SEEN_SECONDS = 30.0
"""The longest that a shared file system may take to show one node another node's file."""


class Folder:
    """Checkpoints in a folder, ``step_STEP-NUMBER`` each, numbered by the saves of all runs.

    Args:
        path: the folder; created by `take`.
        keep_last: number of complete checkpoints to keep.
        keep_best: number of best checkpoints to keep in addition.
        best: ``"max"`` or ``"min"``: whether high or low scores are better.
    """

    def __init__(self, path: Path, *, keep_last: int = 1, keep_best: int = 0, best: str = "max"):
        self.path, self._keep_last, self._keep_best = path, keep_last, keep_best
        self._sign = 1 if best == "max" else -1
        self._lock: Lock | None = None
        self._device: int | None = None
        self._run = ""

    def take(self, run: str, last: int = sys.maxsize) -> Path:
        """Locks the folder for this run, until `give_back` or the end of the process.

        Args:
            run: the run's name.
            last: remains of incomplete saves up to this number are removed; no node may be writing
                one of them.

        Returns:
            A file that shows other nodes that they see the same folder; the caller removes it.

        Raises:
            OSError: the folder cannot be written to.
            CheckpointError: another run uses it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if self._lock is None or not self._lock.is_at(self.path):
            self.give_back()
            self._lock = Lock(self.path, waits=True)
        self.sweep(last)
        self._lock.sign()  # after the sweep, which frees space on a full disk
        self._write_run(run)
        for old in self.path.glob("seen-*"):  # left by an interrupted start
            old.unlink(missing_ok=True)
        token = self.token(run)
        token.touch()
        return token

    def last_number(self) -> int:
        """Returns the number of the last save, complete or not; 0 if there is none."""
        return max(map(_number, self._all()), default=0)

    def sweep(self, last: int) -> None:
        """Removes the remains of incomplete saves up to number `last`.

        Otherwise the next save might find no space. No node may still be writing one of them.
        """
        for path in self._all():
            if _number(path) <= last and _complete.is_cut_short(path):
                log.warning("Removes %s, left over from an interrupted save.", shown(path))
                _complete.remove(path)

    def sweep_if_free(self) -> None:
        """Calls `sweep` if no run uses the folder now."""
        with contextlib.suppress(OSError, CheckpointError):
            lock = Lock(self.path)
            try:
                self.sweep(sys.maxsize)
            finally:
                lock.close()

    def is_unused(self) -> bool:
        """Returns whether there is no checkpoint, not even a damaged one, and no run that saves."""
        if self.complete() or self.unreadable():
            return False
        try:
            Lock(self.path).close()
        except FileNotFoundError:
            pass
        except CheckpointError:
            return False
        return True

    def sweep_own(self, node: int, last: int) -> None:
        """Removes a node's parts of saves up to number `last` that failed on another node."""
        for path in self._all():
            if _number(path) <= last and _complete.has_failed(path):
                _complete.remove_part(path, node)

    def token(self, run: str) -> Path:
        """Returns the path of the file that `take` creates."""
        return self.path / f"seen-{run}"

    def give_back(self) -> None:
        """Lets other runs use the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def remember(self, run: str) -> None:
        """Records the run, and its file system, so that the folder is not recreated on another."""
        self._run = run
        with contextlib.suppress(OSError):
            self._device = self.path.stat().st_dev

    @property
    def is_held(self) -> bool:
        """True if this process holds the lock of the present folder."""
        return self._lock is not None and self._lock.is_at(self.path)

    def make_again(self) -> None:
        """Recreates the folder if it was deleted during the run; called before each save.

        The process that holds the lock recreates it; the others wait until they see the folder of
        their run.

        Raises:
            OSError: the folder cannot be created, or its path is no longer a folder.
            CheckpointError: another run has recreated the folder and uses it.
        """
        if self._lock is None:
            self._await_run()
            return
        if self._lock.is_at(self.path):
            return
        if self._run_there() != self._run:
            above = next(x for x in (self.path, *self.path.parents) if os.path.exists(x))
            if self._device not in (None, above.stat().st_dev):
                raise OSError(
                    f"its file system is not mounted any more, and {above} is on another one"
                )
            gone = not self.path.is_dir()
            self.path.mkdir(parents=True, exist_ok=True)
            what = "was deleted, with all checkpoints" if gone else "has lost its lock"
            log.error("%s %s. It is created again.", shown(self.path), what)
        self._lock.close()
        self._lock = Lock(self.path)
        self._lock.sign()
        self._write_run(self._run)

    def _write_run(self, run: str) -> None:
        """Records in the folder the run that holds it, for the nodes that hold no lock."""
        part = self.path / "run.part"
        part.write_text(run)
        os.replace(part, self.path / "run")

    def _run_there(self) -> str | None:
        """The run that the folder belongs to; None if there is none."""
        try:
            return (self.path / "run").read_text()
        except OSError:
            return None

    def _await_run(self) -> None:
        """Waits until the folder is there again, if it was deleted.

        Raises:
            CheckpointError: the folder is not there, or belongs to another run.
        """
        end = time.monotonic() + _SEEN_SECONDS
        while (run := self._run_there()) != self._run:
            if run is not None:
                raise CheckpointError(
                    f"Another run uses {shown(self.path)} now. Give each run a folder of its own, "
                    "or end the other."
                )
            if time.monotonic() > end:
                raise CheckpointError(
                    f"{shown(self.path)} is gone, and the node that holds it has not created it "
                    "again. Give a folder that persists."
                )
            with contextlib.suppress(OSError):
                os.listdir(self.path.parent)
            time.sleep(0.05)

    def of(self, step: int, number: int) -> Path:
        """Returns the folder of a save."""
        return self.path / f"step_{step:08d}-{number:06d}"

    def complete(self) -> list[tuple[Path, Manifest]]:
        """Returns complete checkpoints, oldest first."""
        return _whole(self._found())

    def unreadable(self) -> list[tuple[Path, DamagedError]]:
        """Returns checkpoints whose manifest exists but cannot be read, newest first."""
        damaged = [(path, x) for path, x in self._found().items() if isinstance(x, DamagedError)]
        return sorted(damaged, key=lambda x: -_number(x[0]))

    def prune(self, last: int, whole: Collection[int] | None = None) -> int:
        """Removes saves that are not among the last or the best and are not being written.

        Returns the number of the newest complete save, 0 if there is none.

        One whose manifest cannot be read stays: the file system may have a temporary problem.

        Args:
            last: number of the last save of this run.
            whole: numbers of the saves that all folders of a checkpoint have, if there are several.
                Other folders may still be writing the last save, but none before it.
        """
        found = self._found()
        complete = [x for x in _whole(found) if whole is None or x[1].number in whole]
        scored = [x for x in complete if x[1].score == x[1].score is not None]
        scored.sort(key=lambda x: self._sign * (x[1].score or 0.0))
        stay = complete[-self._keep_last :]
        stay += scored[-self._keep_best :] if self._keep_best else []
        newest = complete[-1][1].number if complete else 0
        kept = {path for path, _ in stay}
        for path, manifest in found.items():
            damaged = isinstance(manifest, DamagedError)
            last_one = whole is not None and _number(path) >= last
            written = _number(path) > newest and (manifest is None or last_one)
            away = manifest is None and path.is_symlink()  # its file system is not mounted
            if path not in kept and not damaged and not written and not away:
                _complete.remove(path)
        return newest

    def _found(self) -> dict[Path, Manifest | DamagedError | None]:
        """Returns all saves, each with what `_complete.complete` returns."""
        return {path: _complete.complete(path) for path in self._all()}

    def _all(self) -> list[Path]:
        try:
            return [path for path in self.path.iterdir() if _NAME.fullmatch(path.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"{shown(self.path)} cannot be read: {error}.") from error


def _whole(found: Mapping[Path, Any]) -> list[tuple[Path, Manifest]]:
    """Returns the complete saves among all, oldest first."""
    whole = [(path, x) for path, x in found.items() if isinstance(x, Manifest)]
    return sorted(whole, key=lambda x: x[1].number)


def appears(path: Path) -> bool:
    """Waits until a file is visible, which can take time on shared file systems; False if never."""
    end = time.monotonic() + _SEEN_SECONDS
    while not os.path.exists(path):  # also False without permission to look
        if time.monotonic() > end:
            return False
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # listing the folder makes NFS refresh it
        time.sleep(0.05)
    return True


def _number(path: Path) -> int:
    """Returns the number of a save, from its folder's name."""
    return int(path.name.rpartition("-")[2])
