"""Reads the checkpoints of a run that may go on meanwhile."""

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
"""Checkpoints may be removed as they are read: each try is of another one."""


class Reader:
    """Reads checkpoints, for example to evaluate a run beside it, and never writes or locks.

    The run goes on saving and removing meanwhile. The folder may be one that this user can only
    read.

    A state is what the run would be if it ended there: of parameters and all other floats the mean
    over its nodes, formed in float64, of integers node 0's. So the numbers do not depend on how
    many nodes read it, and all of them get the same. What was in flight is left out; to go on
    exactly as the run would, use `Checkpoints` and as many nodes.

    All nodes make it and read together.

    Args:
        folder: that `Checkpoints` were given; it may not be there yet.
        session: the nodes that read: one, or any number.

    Raises:
        CheckpointError: the folder's name is none; see `Checkpoints`.

    On failure: a checkpoint that is damaged, or was removed by its run as it was read, is logged
    and another one taken.

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
        """The folder that holds them."""
        return self._folder.path

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints that this node sees, oldest first."""
        return sorted({manifest.step for _, manifest in self._folder.complete()})

    def restore(self, like: PyTree, step: int | None = None) -> tuple[PyTree, int]:
        """The newest complete checkpoint, or that of a step.

        Args:
            like: a state with the tree, dtypes, shapes and shardings that the result shall have.
                It may lack what is not needed: ``{"params": params}`` of a state that has an
                optimizer too. Only what it has is read.
            step: which one; the newest where None.

        Returns:
            The state, and how many updates it has seen.

        Raises:
            CheckpointError: on all nodes; there is none yet, none is whole, or they are of another
                tree, shapes or settings. Names the leaf.
        """
        what = "complete one yet" if step is None else f"complete one of step {step}"
        return self._choose(like, lambda manifest: step in (None, manifest.step), what)

    def follow(
        self, like: PyTree, *, poll_seconds: float = 10.0, limit_seconds: float = 3600.0
    ) -> Iterator[tuple[PyTree, int]]:
        """Gives the newest checkpoint, and whenever there is a newer one that.

        One that is overtaken while the caller works is left out, and so is one that is damaged.

        Args:
            like: see `restore`.
            poll_seconds: between two looks at the folder.
            limit_seconds: how long to wait for a newer one; then the loop ends.

        Yields:
            The state, and how many updates it has seen.

        Raises:
            CheckpointError: see `restore`.
            ValueError: `poll_seconds` is not above 0, or `limit_seconds` below 0.
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
            except DamagedError:  # or removed; there is a newer one then
                continue
            yield found

    def _await_newer(self, last: str, poll_seconds: float, limit_seconds: float) -> str:
        """The newest checkpoint once it is not `last`; "" after the limit. All nodes together."""
        end = time.monotonic() + limit_seconds
        while True:
            self._session.require_usable()
            newest = ""
            if self._session.node == 0:
                try:
                    newest = next((_identity(x) for _, x in self._folder.complete()[::-1]), "")
                except CheckpointError as error:  # of a file system in trouble, which may pass
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
        """The newest whole checkpoint that fits."""
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
        """Complete checkpoints, newest first, as node 0 sees them."""
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
        """One checkpoint, which node 0 reads for all."""
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
                fitting = fit_leaves(saved, here, first.nodes, first.parted, partly=True)
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
    """An identity that no other checkpoint has, also where the folder was made anew."""
    return f"{manifest.run}-{manifest.number}"
