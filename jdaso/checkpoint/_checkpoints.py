"""Checkpoints: saved in the background, completely or not at all, and restored bit for bit."""

from __future__ import annotations

import contextlib
import logging
import operator
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, SupportsIndex

from .._base.errors import Stopped
from .._jax.types import PyTree
from .._launch import signals as _signals
from .._launch.paths import shown
from .._launch.reports import say_saved
from .._session import Session
from ._files import CheckpointError, DamagedError
from ._folder import Folder
from ._parts import Cut, Save, parts_of
from ._saver import Saver
from ._together import (
    LostError,
    folder_of_all,
    is_first,
    name_of_run,
    of_first,
    together,
)

log = logging.getLogger("jdaso")

_WHAT = "restore a checkpoint"


class Checkpoints:
    """Saves and restores the whole state of a run, in a folder that all nodes see.

    The state is any tree: parameters, optimizer state, BatchNorm statistics, random keys, the
    position in the data. The result of an exchange in flight is saved with it: the save completes
    the exchange on the network but does not merge it, and a restored run merges it at the step
    where it would have been merged. With the same number of nodes a restored run continues
    bit for bit as if it had never stopped.

    All nodes create, save and restore together, at the same steps. A save copies the state to the
    host and returns; a thread writes it. Each node writes its own arrays, node 0 also those that
    are the same everywhere. A checkpoint is complete once all nodes have written their parts: an
    incomplete one is never used, and the one before it is kept. Every file has a checksum. Nothing
    is pickled, so a checkpoint from elsewhere cannot run code.

    A pipeline's states are saved in parts, each by the nodes that hold it, as above. A step counts
    as saved, and as kept, once all partitions have saved it, and a save waits until the one before
    it has ended on all of them. The folder can be restored with another number of partitions or
    replicas: each node reads the rows that it needs. With another number of partitions outer
    optimizers begin anew.

    On another number of nodes, parameters, inner optimizer and all other float leaves become the
    mean over the old nodes, in float64; integers become node 0's; random keys that differed stay
    different. Phases, plateau state and the outer optimizer continue (after a run of one node the
    outer optimizer begins anew, and phases with another B, S or l). The exchange in flight is
    dropped: its content is in the mean of the parameters already, except the error feedback of a
    narrow wire. Losses that no exchange has carried yet are dropped too.

    Args:
        folder: created if missing; on a file system that all nodes share. ``~`` and ``$NAME`` are
            expanded.
        session: the nodes, or a `jdaso.pipeline.Pipeline` on them. Closing the session waits until
            the current save is written.
        every_steps: steps between the saves that `after` makes.
        keep_last: number of complete checkpoints to keep.
        keep_best: number of best checkpoints to keep in addition, by the scores given to `save`.
        best: ``"max"`` or ``"min"``: whether high or low scores are better.
        stop_signals: signals that ask the run to save and end at the next step that all nodes can
            reach together; see `after`. They are handled only in the program's main thread. The
            program's own handlers, also those in C, are called too, and restored when the session
            closes. An exception that such a handler raises, such as `SystemExit`, is held back
            until the run is saved, and then becomes the cause of `Stopped`.

    `Reader` reads the checkpoints while a run holds the folder, which is the attribute `folder`.

    Raises:
        CheckpointError: on all nodes, if one does not see the folder, another run uses it, or its
            name is not valid.
        ValueError: a setting is out of range.

    On failure: a failed save is logged at once; complete checkpoints stay, and `wait` raises.

    Example:
        >>> import tempfile, jax.numpy as jnp, jdaso
        >>> from jdaso.checkpoint import Checkpoints
        >>> with jdaso.Session() as session:
        ...     checkpoints = Checkpoints(tempfile.mkdtemp(), session, every_steps=2)
        ...     state, begin = checkpoints.restore({"w": jnp.zeros(3)})
        ...     for step in range(begin, 4):
        ...         state = {"w": state["w"] + 1}
        ...         checkpoints.after(step + 1, state)
        ...     checkpoints.wait()
        ...     checkpoints.restore(state)[1]
        4
    """

    def __init__(
        self,
        folder: str | Path,
        session: Session | Cut,
        *,
        every_steps: int = 1000,
        keep_last: int = 2,
        keep_best: int = 0,
        best: str = "max",
        stop_signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1),
    ):
        for name, value, least in (
            ("every_steps", every_steps, 1),
            ("keep_last", keep_last, 1),
            ("keep_best", keep_best, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        if best not in ("max", "min"):
            raise ValueError(f'best must be "max" or "min", got {best!r}.')
        signals = _signals.check(stop_signals)
        self._parts = parts = parts_of(session)
        self.session, self.every_steps = parts.session, every_steps
        self.session.require_usable()
        self.folder = folder_of_all(folder, self.session, "open checkpoints")
        what, listed = "open checkpoints", partial(parts.last_number, self.folder)
        keep = {"keep_last": keep_last, "keep_best": keep_best, "best": best}
        own = Folder(parts.prepare(self.folder), **keep)
        run, number = name_of_run(self.session), of_first(self.session, what, listed)
        with together(self.session, what):
            whole = partial(parts.whole_numbers, self.folder)
            self._saver = Saver(own, parts.savers, run=run, number=number, whole=whole)
        # Once more: the run that had the lock may have saved before it gave the lock back.
        self._saver.count_from(of_first(self.session, what, listed))
        self.session.control.detector.stopping.on_signals(signals)

    def after(self, step: SupportsIndex, state: PyTree, score: float | None = None) -> None:
        """Saves if a save is due or the run must stop; call this after each update.

        A save is due every `every_steps`. If any node's process receives a stop signal (such as
        Slurm's SIGTERM or SIGUSR1 before preemption), all nodes agree on the next step that all can
        reach, save there, and end with `Stopped`, whose exit status is 75.

        Args:
            step: completed updates, the same on all nodes.
            state: the state that the next update needs.
            score: see `save`.

        Raises:
            Stopped: the run was asked to stop; its state is saved.
            TypeError, ValueError: the step is not an integer, or is negative.
        """
        step = _checked(step)
        stops = self.session.control.detector.stops_at(step)
        if stops or step % self.every_steps == 0:
            self.save(step, state, score)
        if stops:
            while True:
                try:
                    self.wait()
                    break
                except LostError:  # ends, as each try has fewer nodes left
                    self.save(step, state, score)
            self._saver.forget_flights()  # the save includes them
            self._raise_stopped(step)

    def save(self, step: SupportsIndex, state: PyTree, score: float | None = None) -> None:
        """Copies a state to the host and starts to write it; waits for the previous save.

        Args:
            step: completed updates, the same on all nodes.
            state: the state that the next update needs.
            score: how good the state is, for `keep_best`; the same on all nodes.

        Raises:
            CheckpointError: the state does not belong to this session.
            TypeError, ValueError: the step is not an integer, or is negative.
        """
        step = _checked(step)
        if self._parts.several:
            # Parts that are written faster must not run ahead: a save counts once all have it. A
            # failure has been logged.
            with contextlib.suppress(CheckpointError):
                self.wait()
        self._saver.save(step, state, score)

    def wait(self) -> None:
        """Waits until all nodes have finished the current save.

        Raises:
            CheckpointError: on all nodes, if the last save failed on one.
        """
        with together(self.session, "wait for a checkpoint"):
            self._saver.wait()

    def restore(self, like: PyTree, step: int | None = None) -> tuple[PyTree, int]:
        """Restores the newest complete checkpoint, or that of a step.

        A damaged or unreadable checkpoint is logged, and the previous one is used.

        Args:
            like: a state as the program has it before its first update: the tree, dtypes, shapes
                and shardings of the result. Make it with ``tx.init`` or ``Pipeline.init``, so that
                the exchange in flight finds its optimizer.
            step: the step to restore; the newest if None.

        Returns:
            The state, and the number of updates it has seen; `like` and 0 if nothing was saved.

        Raises:
            CheckpointError: on all nodes; shapes, phases or settings differ from the program's; or
                the checkpoint is damaged, if `step` was given or no other is intact. Names the
                leaf.
        """
        session = self.session
        session.require_usable()
        if self._parts.several:
            with contextlib.suppress(CheckpointError):
                self.wait()
        self._saver.settle()
        living, damaged = session.living, self._unreadable()
        for save in self._saves(step):
            try:
                with together(session, _WHAT, OSError):
                    state = self._parts.restore(self.folder, save, like)
                if session.living != living:
                    raise session.control.error(
                        "A node failed while a checkpoint was restored. Start the job again."
                    )
                return state, save.step
            except DamagedError as error:
                damaged.append(str(error))
                log.error("Skips a checkpoint: %s", error)
        if damaged or step is not None:
            what = "No checkpoint" if step is None else f"No checkpoint of step {step}"
            why = damaged[0] if damaged else "There is none."
            raise CheckpointError(f"{what} in {self.folder} can be restored. {why}")
        return like, 0

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints that this node sees, oldest first."""
        return sorted({save.step for save in self._parts.saves(self.folder)})

    def _unreadable(self) -> list[str]:
        """Logs checkpoints whose manifest cannot be read; returns the reasons, newest first."""
        listed = partial(self._parts.unreadable, self.folder)
        found = of_first(self.session, _WHAT, listed, OSError)
        for why in found:
            log.error("Skips a checkpoint: %s", why)
        return found

    def _saves(self, step: int | None) -> list[Save]:
        """Returns complete saves, the preferred one first; the same on all nodes."""

        def saves() -> list[Save]:
            if not self.folder.is_dir():
                raise CheckpointError(f"{shown(self.folder)} is gone, and with it all checkpoints.")
            return self._parts.saves(self.folder)[::-1]

        found = (Save(*save) for save in of_first(self.session, _WHAT, saves, OSError))
        return [save for save in found if step in (None, save.step)]

    def _raise_stopped(self, step: int) -> NoReturn:
        """Ends a run that was asked to stop and is saved."""
        session = self.session
        if is_first(session):
            log.warning(
                "%s The run was asked to stop. It is saved at step %d; start it again to continue.",
                session.topology.prefix(),
                step,
            )
        say_saved()
        session.hooks.note("stopped", step)
        raise Stopped from session.control.detector.stopping.held


def _checked(step: SupportsIndex) -> int:
    """Returns a step as Python's int; integers of NumPy and JAX are accepted too."""
    number = operator.index(step)
    if number < 0:
        raise ValueError(f"step must be at least 0, got {number}.")
    return number
