"""Reads the checkpoints of a run that may still be going on."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from .._launch.paths import shown
from .._session import Session
from .._types import PyTree
from ._facts import check_facts
from ._files import CheckpointError, DamagedError, Leaf, Manifest
from ._folder import Folder
from ._resize import fit_leaves, read_resized, spread
from ._state import from_host, is_flight, values_of
from ._together import folder_of_all, raise_together

log = logging.getLogger("jdaso")

_WHAT = "read checkpoints"
_MOST_TRIES = 20
"""Checkpoints may be removed while they are read: each try reads another one."""


class Reader:
    """Reads checkpoints, for example to evaluate a running job; never writes or locks.

    Meanwhile the run may save and remove checkpoints. Read access to the folder is enough.

    The state is what the run would give if it ended there: parameters and all other floats are the
    mean over its nodes, formed in float64; integers are node 0's. So the numbers do not depend on
    how many nodes read, and all of them get the same. Exchanges in flight are left out; to continue
    exactly as the run would, use `Checkpoints` with the same number of nodes.

    All nodes create the reader and read together.

    Args:
        folder: the one that `Checkpoints` was given; it may not exist yet.
        session: the nodes that read; any number.

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

    def __init__(self, folder: str | os.PathLike[str], session: Session):
        session.require_usable()
        self._session = session
        path = folder_of_all(folder, session, _WHAT)
        self._folder = Folder(path, keep_last=1, keep_best=0, best="max")

    @property
    def folder(self) -> Path:
        """The folder that holds the checkpoints."""
        return self._folder.path

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints that this node sees, oldest first."""
        return sorted({manifest.step for _, manifest in self._folder.complete()})

    def restore(self, like: PyTree, step: int | None = None) -> tuple[PyTree, int]:
        """Reads the newest complete checkpoint, or that of a step.

        Args:
            like: a state with the tree, dtypes, shapes and shardings of the result. It may omit
                parts that are not needed, such as ``{"params": params}`` if the saved state has an
                optimizer too. Only the parts in `like` are read.
            step: the step to read; the newest if None.

        Returns:
            The state, and the number of updates it has seen.

        Raises:
            CheckpointError: on all nodes; there is none yet, none is intact, or tree, shapes or
                settings differ. Names the leaf.
        """
        what = "complete one yet" if step is None else f"complete one of step {step}"
        return self._choose(like, lambda manifest: step in (None, manifest.step), what)

    def follow(
        self, like: PyTree, *, poll_seconds: float = 10.0, limit_seconds: float = 3600.0
    ) -> Iterator[tuple[PyTree, int]]:
        """Yields the newest checkpoint, and then each newer one as it appears.

        A checkpoint that is superseded while the caller works is skipped, and so is a damaged one.

        Args:
            like: see `restore`.
            poll_seconds: time between two looks at the folder.
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
                found = self._choose(like, lambda x, newest=newest: _identity(x) == newest, "it")
            except DamagedError:  # or removed, as there is a newer one
                continue
            yield found

    def _await_newer(self, last: str, poll_seconds: float, limit_seconds: float) -> str:
        """Waits for a newer checkpoint than `last`; "" after the limit. All nodes call it."""
        end = time.monotonic() + limit_seconds
        while True:
            self._session.require_usable()
            newest = ""
            if self._session.node == 0:
                try:
                    newest = next((_identity(x) for _, x in self._folder.complete()[::-1]), "")
                except CheckpointError as error:  # a file system's problem, which may pass
                    log.warning("%s", error)
            ended = newest in ("", last) and time.monotonic() >= end
            text = json.dumps([newest, ended])
            newest, ended = json.loads(self._session.control.everyone(_WHAT, text)[0])
            if newest not in ("", last):
                return newest
            if ended:
                log.info("No new checkpoint in %s for %g s.", shown(self.folder), limit_seconds)
                return ""
            time.sleep(min(poll_seconds, max(end - time.monotonic(), 0.01)))

    def _choose(
        self, like: PyTree, fits: Callable[[Manifest], bool], what: str
    ) -> tuple[PyTree, int]:
        """Reads the newest intact checkpoint that fits."""
        self._session.require_usable()
        failed: dict[str, str] = {}
        while len(failed) < _MOST_TRIES:
            names = [name for name in self._names(fits) if name not in failed]
            if not names:
                break
            try:
                return self._read(self.folder / names[0], like)
            except DamagedError as error:
                failed[names[0]] = str(error)
                log.warning("A checkpoint is left out: %s", error)
        why = next(reversed(failed.values()), f"There is no {what}.")
        kind = DamagedError if failed else CheckpointError
        raise kind(f"No checkpoint in {shown(self.folder)} can be read. {why}")

    def _names(self, fits: Callable[[Manifest], bool]) -> list[str]:
        """Returns complete checkpoints, newest first, as node 0 sees them."""
        said, found = "", ""
        if self._session.node == 0:
            try:
                complete = self._folder.complete()[::-1]
                found = json.dumps([folder.name for folder, x in complete if fits(x)])
            except CheckpointError as error:
                said = str(error)
        raise_together(self._session, _WHAT, said)
        return json.loads(self._session.control.everyone(_WHAT, found)[0])

    def _read(self, folder: Path, like: PyTree) -> tuple[PyTree, int]:
        """Reads one checkpoint on node 0, for all nodes."""
        session = self._session
        here = values_of(like, shares=session.engine != "instant")
        session.agree(_WHAT, [(f"leaf {leaf.path}", str(leaf)) for leaf, _ in here])
        said, kind, about, arrays = "", DamagedError, "", {}
        if session.node == 0:
            try:
                first = Manifest.read(folder, 0)
                if any(leaf.field for leaf, _ in here):
                    check_facts(first, session)
                saved = [leaf for leaf in first.leaves if not is_flight(leaf)]
                fitting = fit_leaves(saved, here, first.parted, partly=True)
                arrays = read_resized(folder, fitting, first.nodes)
                as_dicts = {file: dataclasses.asdict(leaf) for file, leaf in fitting.items()}
                about = json.dumps([first.step, first.nodes, as_dicts])
            except CheckpointError as error:
                said, kind = str(error), type(error)
        raise_together(session, _WHAT, said, kind)
        step, nodes, as_dicts = json.loads(session.control.everyone(_WHAT, about)[0])
        fitting = {
            file: Leaf(**{**leaf, "shape": tuple(leaf["shape"])}) for file, leaf in as_dicts.items()
        }
        arrays = spread(here, fitting, nodes, arrays, session)
        leaves = [from_host(value, arrays[value.leaf.file], session.mesh) for value in here]
        return jax.tree.unflatten(jax.tree.structure(like), leaves), step


def _identity(manifest: Manifest) -> str:
    """Returns an identity that is unique even if the folder was recreated."""
    return f"{manifest.run}-{manifest.number}"
