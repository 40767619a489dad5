"""Reads a pipeline's checkpoints while a run may go on."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from .._launch.paths import shown
from ..checkpoint import CheckpointError
from ..checkpoint._files import DamagedError
from ..checkpoint._together import folder_of_all, raise_together
from ._pipeline import Pipeline, PipelineState
from ._restore import newest, read_state, saved_steps

log = logging.getLogger("jdaso")

_WHAT = "read a pipeline's checkpoints"
_MOST_TRIES = 20
"""Checkpoints may be removed while they are read: each try reads another step."""


class PipelineReader:
    """Reads a pipeline's checkpoints, and never writes or locks; see `jdaso.checkpoint.Reader`.

    The pipeline that reads may have any number of partitions, such as one, on the single node that
    evaluates. Floats are averaged over the run's replicas; exchanges in flight are left out.

    Args:
        folder: the one that `PipelineCheckpoints` was given; all nodes see it.
        pipeline: has the model and the optimizer of the run.

    Raises:
        CheckpointError: `folder` is not a valid name.
    """

    def __init__(self, folder: str | os.PathLike[str], pipeline: Pipeline):
        self._pipeline, self._session = pipeline, pipeline.session
        self._root = folder_of_all(folder, pipeline.session, _WHAT)

    @property
    def folder(self) -> Path:
        """The folder that holds the checkpoints."""
        return self._root

    def steps(self) -> list[int]:
        """Steps that all partitions have saved, as this node sees them, oldest first."""
        return sorted({step for step, _ in saved_steps(self._root)})

    def restore(self, like: PipelineState, step: int | None = None) -> tuple[PipelineState, int]:
        """Reads the newest step that all partitions have saved, or the given `step`.

        Args:
            like: from `Pipeline.init`.
            step: the step to read; the newest if None.

        Returns:
            The state, and the number of updates it has seen.

        Raises:
            CheckpointError: on all nodes; there is no such checkpoint, it is damaged, or it belongs
                to another model or optimizer.
        """
        self._session.require_usable()
        why = "There is no complete one" + ("." if step is None else f" of step {step}.")
        failed: list[tuple[int, int]] = []
        for _ in range(_MOST_TRIES):
            latest = self._latest(step, failed)
            if latest is None:
                break
            said, kind, state = "", CheckpointError, like
            try:
                state = read_state(self._root, *latest, like, self._pipeline)
            except (CheckpointError, OSError) as error:
                removed = isinstance(error, DamagedError | OSError)
                said, kind = str(error), DamagedError if removed else CheckpointError
            try:
                raise_together(self._session, _WHAT, said, kind)
                return state, latest[0]
            except DamagedError as error:  # or removed, as a newer one exists
                failed.append(latest)
                why = str(error)
                log.warning("A checkpoint is left out: %s", error)
        raise CheckpointError(f"No checkpoint in {shown(self._root)} can be read. {why}")

    def _latest(
        self, step: int | None, failed: Sequence[tuple[int, int]]
    ) -> tuple[int, int] | None:
        """Returns a step and a number of partitions, as node 0 sees them; None if none is left."""
        said, found = "", "null"
        if self._session.node == 0:
            try:
                own = self._pipeline.plan.num_partitions
                found = json.dumps(newest(self._root, own, step, failed))
            except (CheckpointError, OSError) as error:
                said = str(error)
        raise_together(self._session, _WHAT, said)
        latest = json.loads(self._session.control.everyone(_WHAT, found)[0])
        return None if latest is None else (latest[0], latest[1])
