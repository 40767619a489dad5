"""Reads the checkpoints of a run that may still be going on."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

from .._jax.types import PyTree
from .._launch.paths import shown
from .._session import Session
from ._files import CheckpointError, DamagedError
from ._parts import Cut, Save, parts_of
from ._together import folder_of_all, is_first, of_first, together

log = logging.getLogger("jdaso")

_WHAT = "read checkpoints"
_MOST_TRIES = 20
"""Checkpoints may be removed while they are read: each try reads another one."""


class Reader:
    """Reads checkpoints, for example to evaluate a running job; never writes or locks.

    Meanwhile the run may save and remove checkpoints. Read access to the folder is enough.

    The state is what the run would give if it ended there: parameters and all other floats are the
    mean over its nodes, formed in float64; integers and random keys are node 0's. So the numbers
    do not depend on how many nodes read, and all of them get the same. Exchanges in flight are left
    out; to continue exactly as the run would, use `Checkpoints` with the same number of nodes.

    All nodes create the reader and read together.

    Args:
        folder: the one that `Checkpoints` was given; it may not exist yet.
        session: the nodes that read, any number; or a pipeline on them, with the model and the
            optimizer of the run, but any number of partitions, such as one.

    Raises:
        CheckpointError: the folder's name is not valid; see `Checkpoints`.

    On failure: a checkpoint that is damaged, or that the run removed while it was read, is logged
    and another one is taken.

    Example:
        >>> import tempfile, jax.numpy as jnp, jdaso
        >>> from jdaso.checkpoint import Checkpoints, Reader
        >>> folder = tempfile.mkdtemp()
        >>> with jdaso.Session() as session:
        ...     checkpoints = Checkpoints(folder, session)
        ...     checkpoints.save(7, {"w": jnp.arange(3.0), "moments": jnp.zeros(3)})
        ...     checkpoints.wait()
        ...     state, step = Reader(folder, session).restore({"w": jnp.zeros(3)})
        >>> step, state["w"].tolist()
        (7, [0.0, 1.0, 2.0])
    """

    def __init__(self, folder: str | os.PathLike[str], session: Session | Cut):
        self._parts = parts_of(session)
        self._session = self._parts.session
        self._session.require_usable()
        self.folder = folder_of_all(folder, self._session, _WHAT)

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints that this node sees, oldest first."""
        return sorted({save.step for save in self._parts.saves(self.folder)})

    def restore(self, like: PyTree, step: int | None = None) -> tuple[PyTree, int]:
        """Reads the newest complete checkpoint, or that of a step.

        Args:
            like: a state with the tree, dtypes, shapes and shardings of the result. It may omit
                parts that are not needed, such as ``{"params": params}`` if the saved state has an
                optimizer too. Only the parts in `like` are read. For a pipeline, from its `init`.
            step: the step to read; the newest if None.

        Returns:
            The state, and the number of updates it has seen.

        Raises:
            CheckpointError: on all nodes; there is none yet, none is intact, or tree, shapes or
                settings differ. Names the leaf.
        """
        what = "complete one yet" if step is None else f"complete one of step {step}"
        return self._choose(like, lambda save: step in (None, save.step), what)

    def follow(
        self, like: PyTree, *, poll_seconds: float = 10.0, limit_seconds: float = 3600.0
    ) -> Iterator[tuple[PyTree, int]]:
        """Yields the newest checkpoint, and then each newer one as it appears.

        A checkpoint that is superseded while the caller works is skipped, and so is a damaged one.

        Args:
            like: see `restore`.
            poll_seconds: time between two checks of the folder.
            limit_seconds: the longest wait for a newer checkpoint; then the loop ends.

        Yields:
            The state, and the number of updates it has seen.

        Raises:
            CheckpointError: see `restore`.
            ValueError: `poll_seconds` is not above 0, or `limit_seconds` is below 0.
        """
        if not poll_seconds > 0 or not limit_seconds >= 0:
            raise ValueError(
                "poll_seconds must be above 0 and limit_seconds at least 0, got "
                f"{poll_seconds=}, {limit_seconds=}."
            )
        last = ""
        while newest := self._await_newer(last, poll_seconds, limit_seconds):
            last = newest
            try:
                found = self._choose(like, lambda save, newest=newest: save.identity == newest)
            except DamagedError:
                continue
            yield found

    def _await_newer(self, last: str, poll_seconds: float, limit_seconds: float) -> str:
        """Waits for a newer checkpoint than `last`; "" after the limit. All nodes call it."""
        end = time.monotonic() + limit_seconds
        while True:
            self._session.require_usable()
            newest = ""
            if is_first(self._session):
                try:
                    newest = next((x.identity for x in self._parts.saves(self.folder)[::-1]), "")
                except CheckpointError as error:  # a problem of the file system, perhaps temporary
                    log.warning("%s", error)
            ended = newest in ("", last) and time.monotonic() >= end
            text = json.dumps([newest, ended])
            newest, ended = json.loads(self._session.all_ranks.everyone(_WHAT, text)[0])
            if newest not in ("", last):
                return newest
            if ended:
                log.info("No new checkpoint in %s for %g s.", shown(self.folder), limit_seconds)
                return ""
            time.sleep(min(poll_seconds, max(end - time.monotonic(), 0.01)))

    def _choose(
        self, like: PyTree, fits: Callable[[Save], bool], what: str = ""
    ) -> tuple[PyTree, int]:
        """Reads the newest intact checkpoint that fits.

        Raises:
            DamagedError: none that fits is intact; or, without `what`, one that was listed is
                gone, as its run removes checkpoints that newer ones have replaced.
            CheckpointError: there is none of `what`, or it does not fit `like`.
        """
        self._session.require_usable()
        failed: dict[Save, str] = {}
        while len(failed) < _MOST_TRIES:
            listed = partial(self._parts.saves, self.folder)
            saves = map(Save._make, of_first(self._session, _WHAT, listed, OSError)[::-1])
            save = next((x for x in saves if fits(x) and x not in failed), None)
            if save is None:
                break
            try:
                with together(self._session, _WHAT, OSError):
                    return self._parts.read(self.folder, save, like), save.step
            except DamagedError as error:
                failed[save] = str(error)
                log.warning("Skips a checkpoint: %s", error)
        listed = partial(self._parts.unreadable, self.folder)
        unreadable = [] if failed else of_first(self._session, _WHAT, listed, OSError)
        missing = f"There is no {what}." if what else "The run has removed it."
        why = next(iter((*reversed(failed.values()), *unreadable)), missing)
        kind = DamagedError if failed or unreadable or not what else CheckpointError
        raise kind(f"No checkpoint in {shown(self.folder)} can be read. {why}")
