"""The partitions of a pipeline as the parts of its checkpoints."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from .._launch.paths import shown
from .._session import Session
from ..checkpoint import CheckpointError
from ..checkpoint._cutting import (
    Folder,
    Manifest,
    Save,
    is_first,
    of_first,
    require_seen,
    restore,
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
    another: floats become the mean over the old replicas, and exchanges in flight are dropped.

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
        """Returns the steps that all partitions of some number have saved, the newest last.

        Among the saves of a step, those with the present number of partitions are preferred.
        """
        found = []
        for folder in root.glob("partitions-*"):
            number = folder.name.removeprefix("partitions-")
            if not number.isdecimal():  # a copy that the user has put aside
                continue
            partitions = int(number)
            steps = [_steps(folder / str(p)) for p in range(partitions)]
            for step in set(steps[0]).intersection(*steps):
                manifests = [of_one[step][1] for of_one in steps]
                identity = " ".join(f"{x.run}-{x.number}" for x in manifests)
                found.append(Save(step, folder.name, identity))
        own = _folder(root, self._grid.partitions).name
        return sorted(found, key=lambda save: (save.step, save.name == own, save.name))

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
            folder = own / str(self._grid.partition)
            path = of_first(self.savers, _WHAT, lambda: _steps(folder)[save.step][0].name, KeyError)
            return restore(self.savers, folder / path, like)
        restored = self.read(root, save, like)
        if is_first(self.session):
            log.warning(
                "%s The checkpoint of step %d is in %s, this run has %d: floats become the mean "
                "over its replicas, and exchanges in flight are dropped.",
                self.session.topology.prefix(),
                save.step,
                save.name,
                self._grid.partitions,
            )
        return restored

    def read(self, root: Path, save: Save, like: PipelineState) -> PipelineState:
        """Reads this rank's rows from the parts of any number of partitions."""
        partitions, folder = int(save.name.split("-")[1]), root / save.name
        return read_state(folder, save.step, partitions, like, self._holding, self._grid)

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


def _steps(folder: Path) -> dict[int, tuple[Path, Manifest]]:
    """Returns the newest save of each step that is complete."""
    return {x[1].step: x for x in Folder(folder).complete()}
