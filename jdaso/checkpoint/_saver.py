"""Saves a part of a state in the background, completely or not at all."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # see `_finish_at_exit`
import contextlib
import dataclasses
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence

import jax
import numpy as np

from .._base.version import __version__
from .._exchange.collectives import require_own_devices
from .._jax.types import PyTree
from .._launch.paths import shown
from .._launch.reports import say_progressed
from .._session import Session
from . import _arrays, _complete, _digests
from ._facts import facts_of
from ._files import COMMON, CheckpointError, Manifest, SavedLeaf, node_folder
from ._flights import Kept, flight_arrays, keep_flights, release
from ._folder import Folder
from ._state import SavedValue, parted_devices, to_host, values_of
from ._together import DISK_SECONDS, LostError, place_of, shares_leaves, take, together

log = logging.getLogger("jdaso")

_NICE = 15


class Saver:
    """Copies states to the host and writes them, in a folder that it holds for this run.

    Args:
        folder: of the part; taken here, and given back when the session closes.
        session: the nodes that save the part together.
        run: a name for this run, the same for all parts.
        number: of the last save before this run, in the folders of all parts.
        whole: returns the numbers of the saves that all parts have; None if there is one part.
    """

    def __init__(
        self,
        folder: Folder,
        session: Session,
        *,
        run: str,
        number: int,
        whole: Callable[[], Collection[int] | None] = lambda: None,
    ):
        self._folder, self._session, self._whole = folder, session, whole
        self._node, self._nodes = place_of(session)
        self._saved_by: tuple[int, ...] | None = None  # the nodes alive at the last save
        self._buffers: dict[str, np.ndarray] = {}
        self._flights: list[Kept] = []  # in flight at the last save
        self._writer: threading.Thread | None = None
        self._unwaited = False  # the same on all nodes: a save that `wait` has not awaited
        self._error: Exception | None = None
        self._run, self._number = run, number
        self._reported = number  # to the supervisor, as complete
        take(folder, session, run)
        session.hooks.on_close(self._close)
        session.hooks.on_settle(self._settle_notes)

    def count_from(self, number: int) -> None:
        """Counts on from the last save of a run that has just given the folder back."""
        self._number = self._reported = max(self._number, number)

    def save(self, step: int, state: PyTree, score: float | None) -> None:
        """Copies a state to the host and starts to write it; waits for the previous save."""
        session, shares = self._session, shares_leaves(self._session)
        session.require_usable()
        begin = time.perf_counter()
        self.settle()
        self._error = None  # the earlier failure was reported; this is a new save
        if session.control.survives:  # all are here; some may have failed while writing
            self._sweep()
        self._number += 1
        self._unwaited = True
        self._saved_by = session.living if session.control.survives else None
        if session.num_nodes > 1 and not session.joined:
            require_own_devices(session, state)
        state = jax.block_until_ready(state)
        parted = parted_devices(state, session)
        values = values_of(state, shares=shares, parted=parted)
        mine = [value for value in values if self._node == 0 or not value.leaf.common]
        for leaf, value in mine:
            buffer = self._buffers.get(leaf.file)
            self._buffers[leaf.file] = to_host(SavedValue(leaf, value), buffer)
        score = None if score is None else float(score)
        flights = self._flights = keep_flights(state, session)
        manifest = Manifest(
            run=self._run,
            number=self._number,
            step=step,
            node=self._node,
            nodes=self._nodes,
            begun=session.topology.num_ranks,
            score=score,
            facts=facts_of(session),
            leaves=tuple(value.leaf for value in values),
            parted=parted,
            flights=tuple(x.saved for x in flights),
            files={},
            versions={"jdaso": __version__, "jax": jax.__version__},
            ranks_per_node=session.ranks_per_node,
        )
        writer = threading.Thread(
            target=self._write,
            args=(manifest, self._buffers, flights),
            name="jdaso-save",
            daemon=True,
        )
        _finish_at_exit(self)
        try:
            writer.start()
        except BaseException:  # as where the system allows no more threads
            release(flights)
            raise
        self._writer = writer
        size = sum(array.nbytes for array in self._buffers.values())
        session.timeline.record("checkpoint", step, begin, size_bytes=size)

    def wait(self) -> None:
        """Waits until all nodes of the part have finished the current save.

        Raises:
            CheckpointError: on all of them, if the save failed on one.
            LostError: on all of them, if one failed meanwhile.
        """
        self._unwaited = False
        self.join()
        error, self._error = self._error, None
        try:
            with together(self._session, "wait for a checkpoint"):
                if error is not None:
                    raise error
        except CheckpointError:
            self._sweep()
            raise
        whole = self._saved_by in (None, self._session.living)
        self._saved_by = None
        self.settle()
        if self._node == 0:
            self._prune()
        if not whole:
            self._sweep()
            raise LostError(
                f"{self._session.topology.prefix()} A node failed before its part of a checkpoint "
                "was known to be written. Save again; earlier checkpoints are still there."
            )

    def join(self) -> None:
        """Waits until this node's save is written.

        Raises:
            CheckpointError: the file system does not respond.
        """
        if self._writer is not None:
            self._writer.join(DISK_SECONDS)
            if self._writer.is_alive():
                raise CheckpointError(
                    f"{self._session.topology.prefix()} A checkpoint was not written to "
                    f"{self._folder.path} within {DISK_SECONDS:g} s. Check for a file system "
                    "that hangs."
                )
            self._writer = None

    def settle(self) -> None:
        """Joins, and finds this node's part; if nodes may fail, all call this together."""
        self.join()
        if self._session.control.survives:
            before = self._node
            self._node, self._nodes = place_of(self._session)
            if before > self._node == 0:  # node 0's part and the folder are now this node's
                try:
                    # Others may be writing the next save by now.
                    self._folder.take(self._run, self._number).unlink(missing_ok=True)
                except OSError as error:
                    raise CheckpointError(
                        f"{self._session.topology.prefix()} {shown(self._folder.path)} cannot be "
                        f"used ({error}), now that node 0 has failed."
                    ) from error

    def _settle_notes(self, limit_seconds: float) -> None:
        """Waits for the note of the current save."""
        if self._writer is not None:
            self._writer.join(limit_seconds)

    def forget_flights(self) -> None:
        """Notes that the last save includes the exchanges in flight; nothing waits for them."""
        for kept in self._flights:
            kept.version.forget()

    def _write(
        self, manifest: Manifest, arrays: dict[str, np.ndarray], flights: Sequence[Kept]
    ) -> None:
        """Writes arrays first, the manifest last; runs in a thread."""
        begin = time.perf_counter()
        with contextlib.suppress(OSError):  # training has priority; orbax's threads inherit it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        folder, holds = self._folder.of(manifest.step, manifest.number), False
        released = 0
        try:
            self._folder.make_again()
            holds = True
            nothing = np.zeros(0)  # for arrays that node 0 writes
            found = [(leaf, arrays.get(leaf.file, nothing)) for leaf in manifest.leaves]
            # The ranks of a node have parts of what nodes have in common.
            shares = shares_leaves(self._session) and not self._session.joined
            for number, kept in enumerate(flights):
                released = number + 1
                found += flight_arrays(number, kept, shares=shares)
            self._folder.sweep_own(manifest.node, manifest.number - 1)
            folder.mkdir(exist_ok=True)
            leaves: list[SavedLeaf] = []
            own = node_folder(manifest.node)
            for name, common in ((COMMON, True), (own, False)):
                part = [(leaf, array) for leaf, array in found if leaf.common == common]
                if common and manifest.node != 0:
                    leaves += [leaf for leaf, _ in part]
                else:
                    leaves += _arrays.write_arrays(folder, name, part)
            self._session.hooks.reach("save")
            files = _digests.checksums(folder, (COMMON, own) if manifest.node == 0 else (own,))
            manifest = dataclasses.replace(manifest, leaves=tuple(leaves), files=files)
            manifest.write(folder)
            _digests.sync_folder(folder.parent)
        except Exception as error:
            release(flights[released:])
            if holds:  # else another run may have a save of that name
                _complete.give_up(folder, manifest.node, manifest.nodes)
            self._error = CheckpointError(
                f"{self._session.topology.prefix(manifest.step)} A checkpoint could not be written "
                f"to {shown(folder)}: {str(error).rstrip('.')}. {self._what_is_left(str(error))}"
            )
            log.error("%s", self._error)
            text = f"a checkpoint could not be written: {str(error).partition(chr(10))[0]}"
            self._session.hooks.note("fault", manifest.step, text)
            return
        if _complete.has_failed(folder):
            _complete.remove_part(folder, manifest.node)
        else:
            self._session.hooks.note("checkpoint", manifest.step)
        if manifest.node == 0:
            self._prune()
        timeline, size = self._session.timeline, sum(array.nbytes for array in arrays.values())
        timeline.record("checkpoint", manifest.step, begin, lane="checkpoint", size_bytes=size)
        log.info("saved step %d in %.1f s", manifest.step, time.perf_counter() - begin)

    def _prune(self) -> None:
        """Removes checkpoints that are not kept. A failure costs nothing but space."""
        try:
            if self._folder.is_held:
                newest = self._folder.prune(self._number, self._whole())
                if newest > self._reported:
                    self._reported = newest
                    say_progressed()
        except (OSError, CheckpointError) as error:
            log.warning("Old checkpoints could not be removed: %s", error)

    def _sweep(self) -> None:
        """Removes incomplete saves; none that this node has started is still being written."""
        if self._node == 0 and self._folder.is_held:
            try:
                self._folder.sweep(self._number)
            except (OSError, CheckpointError) as error:
                log.warning("What is left of a save could not be removed: %s", error)

    def _what_is_left(self, why: str) -> str:
        """Describes the checkpoints left after a failed save, and the remedy."""
        if not self._folder.path.is_dir():
            return "The folder is gone with its contents. Give a folder that persists."
        remedies = {
            "space left": "Free space there. ",
            "quota": "Free space there, or raise the quota. ",
            "denied": "Give this user the right to write there. ",
            "Read-only": "Choose a file system that is mounted for writing. ",
        }
        found = [remedy for sign, remedy in remedies.items() if sign in why]
        return f"{''.join(found[:1])}Checkpoints before it are still there."

    def _close(self, after_error: bool) -> None:
        """Finishes the current save when the session closes."""
        try:
            if after_error or not self._unwaited:
                self.join()
            else:
                self.wait()
        except LostError as error:
            log.warning("%s", error)
        finally:
            self._folder.give_back()


_savers: weakref.WeakSet[Saver] = weakref.WeakSet()


def _finish_at_exit(saver: Saver) -> None:
    """Lets a save finish if the program ends while the session is still open.

    The session closes in `atexit`, after Python has ended its thread pools, which orbax needs. The
    functions of `threading._register_atexit` run earlier, the last one first; nothing public does
    the same. Those of thread pools are registered when their module is loaded.
    """
    if not _savers and (register := getattr(threading, "_register_atexit", None)) is not None:
        with contextlib.suppress(RuntimeError):  # the program is already ending
            register(_finish_all)
    _savers.add(saver)


def _finish_all() -> None:
    for saver in list(_savers):
        with contextlib.suppress(CheckpointError):  # the session reports it when it closes
            saver.join()
