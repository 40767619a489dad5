"""The partitions of a pipeline as the parts of its checkpoints."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .._launch.paths import shown
from .._session import Session
from ..checkpoint import CheckpointError
from ..checkpoint._cutting import (
    DamagedError,
    Folder,
    Manifest,
    Save,
    check_facts,
    is_first,
    of_first,
    require_seen,
    restore,
    take_measured,
    together,
)
from ._plan.holding import Holding
from ._restore import read_state
from ._run.grid import Grid
from ._state import PipelineState

log = logging.getLogger("jdaso")

_WHAT = "use a pipeline's checkpoints"


class Partitions:
    """Each partition is saved by its own replicas, in a folder of its own.

        partitions-4/holding.json    which rows of which parameters each partition holds
        partitions-4/0/  ...         saves of each partition, by its replicas

    If the number of partitions and their parameters are unchanged, each partition restores its own
    part, bit for bit. Otherwise each node reads the rows that it needs, one old partition after
    another: floats become the mean over the old replicas, exchanges in flight are dropped, and
    outer optimizers begin anew.

    Args:
        holding: the rows that each partition holds.
        grid: the nodes, as partitions and replicas.
        replicas: those that hold this node's partition.
        goes_on_at: called with the number of updates of a state from which a run continues.
    """

    def __init__(
        self,
        holding: Holding,
        grid: Grid,
        replicas: Session,
        goes_on_at: Callable[[int], None] = lambda step: None,
    ):
        self.session, self.savers = grid.session, replicas
        self.several = grid.partitions > 1
        self._holding, self._grid, self._goes_on_at = holding, grid, goes_on_at

    def prepare(self, root: Path) -> Path:
        """Writes `holding.json`; removes remains of runs with other numbers of partitions.

        Raises:
            CheckpointError: the folder's partitions hold other parameters; see also `Checkpoints`.
        """
        own = _folder(root, self._grid.partitions)

        def make() -> None:
            try:
                own.mkdir(parents=True, exist_ok=True)
                self._check_holding(own / "holding.json")
                for lock in root.glob("partitions-*/*/lock"):
                    if lock.parents[1] != own:
                        Folder(lock.parent).sweep_if_free()
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{shown(own)} cannot be used: {error}") from error

        of_first(self.session, _WHAT, make)
        require_seen(own / "holding.json", self.session, _WHAT)
        return own / str(self._grid.partition)

    def saves(self, root: Path) -> list[Save]:
        """Returns the saves that all partitions of some number have, the newest last."""
        found = {
            (manifest.number, folder.name): Save(manifest.step, folder.name, identity)
            for folder, partitions in _cuts(root)
            for identity, ((_, manifest), *_) in _whole(folder, partitions).items()
        }
        return [found[key] for key in sorted(found)]

    def last_number(self, root: Path) -> int:
        """See `checkpoint._parts.Parts`. Saves count through all numbers of partitions."""
        folders = (folder / str(p) for folder, partitions in _cuts(root) for p in range(partitions))
        return max((Folder(folder).last_number() for folder in folders), default=0)

    def whole_numbers(self, root: Path) -> set[int]:
        """See `checkpoint._parts.Parts`."""
        partitions = self._grid.partitions
        whole = _whole(_folder(root, partitions), partitions)
        return {manifest.number for (_, manifest), *_ in whole.values()}

    def unreadable(self, root: Path) -> list[str]:
        """See `checkpoint._parts.Parts`."""
        parts = sorted(root.glob("partitions-*/*/"))
        return [str(error) for part in parts for _, error in Folder(part).unreadable()]

    def restore(self, root: Path, save: Save, like: PipelineState) -> PipelineState:
        """Restores this rank's part, or its rows of the parts of another number of partitions."""
        state = self._restored(root, save, like)
        self._goes_on_at(save.step)
        return state

    def _restored(self, root: Path, save: Save, like: PipelineState) -> PipelineState:
        own = _folder(root, self._grid.partitions)
        if save.name == own.name:
            mine = partial(self._path_of, own, save)
            path = of_first(self.savers, _WHAT, mine)
            return restore(self.savers, own / str(self._grid.partition) / path, like)
        self.session.hooks.reach("restore")
        with together(self.session, _WHAT, OSError):  # all replicas go on, or none
            restored = self._read(root, save, like, goes_on=True)
        if is_first(self.session):
            log.warning(
                "%s The checkpoint of step %d is in %s, this run has %d: floats become the mean "
                "over its replicas, exchanges in flight are dropped, and an outer optimizer begins "
                "anew.",
                self.session.topology.prefix(),
                save.step,
                save.name,
                self._grid.partitions,
            )
        return restored

    def read(self, root: Path, save: Save, like: PipelineState) -> PipelineState:
        """Reads this rank's rows from the parts of any number of partitions."""
        return self._read(root, save, like, goes_on=False)

    def _read(self, root: Path, save: Save, like: PipelineState, *, goes_on: bool) -> PipelineState:
        folder = root / save.name
        parts = _parts_of(folder, save)
        if goes_on:
            take_measured(parts[0][1], self.savers)
        check_facts(parts[0][1], self.savers, goes_on=goes_on)
        paths = [path for path, _ in parts]
        return read_state(folder, paths, save.step, like, self._holding, self._grid)

    def _path_of(self, own: Path, save: Save) -> str:
        return _parts_of(own, save)[self._grid.partition][0].name

    def _check_holding(self, path: Path) -> None:
        """Writes `holding.json`; refuses checkpoints of partitions that hold other parameters."""
        units = self._holding.units
        text = json.dumps([[unit.leaf, unit.begin, unit.end, unit.users] for unit in units])
        own = [Folder(path.parent / str(p)) for p in range(self._grid.partitions)]
        differs = path.exists() and path.read_text() != text
        if differs and not all(folder.is_unused() for folder in own):
            raise CheckpointError(
                f"its checkpoints are of {self._grid.partitions} partitions that hold other "
                "parameters than these do. Give the boundaries that they were made with "
                "(boundaries=...), or another folder."
            )
        part = path.with_suffix(".part")
        part.write_text(text)
        os.replace(part, path)


def _folder(root: Path, partitions: int) -> Path:
    return root / f"partitions-{partitions}"


def _cuts(root: Path) -> list[tuple[Path, int]]:
    """Returns the folders of all numbers of partitions, with the number."""
    names = ((x, x.name.removeprefix("partitions-")) for x in root.glob("partitions-*"))
    return [(x, int(name)) for x, name in names if name.isdecimal()]  # not a copy put aside


def _whole(folder: Path, partitions: int) -> dict[str, list[tuple[Path, Manifest]]]:
    """Returns the saves that all partitions have, by identity: each partition's part."""
    of_each = [
        {f"{found.run}-{found.number}": (path, found) for path, found in Folder(own).complete()}
        for own in (folder / str(p) for p in range(partitions))
    ]
    first, *others = of_each
    return {x: [of[x] for of in of_each] for x in first if all(x in of for of in others)}


def _parts_of(folder: Path, save: Save) -> list[tuple[Path, Manifest]]:
    """Returns each partition's part of a save.

    Raises:
        DamagedError: the save is gone.
    """
    partitions = int(folder.name.removeprefix("partitions-"))
    parts = _whole(folder, partitions).get(save.identity)
    if parts is None:
        raise DamagedError(f"{shown(folder)} has no step {save.step} any more.")
    return parts
