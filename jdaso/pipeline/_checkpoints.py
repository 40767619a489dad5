"""Checkpoints of pipelines, which can be restored with another number of partitions."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from .._launch import signals as _signals
from .._launch.paths import shown
from ..checkpoint import CheckpointError, Checkpoints
from ..checkpoint._checkpoints import raise_stopped
from ..checkpoint._folder import appears
from ..checkpoint._together import folder_of_all, raise_together
from ._pipeline import Pipeline, PipelineState
from ._plan.holding import Holding
from ._restore import folder_of, newest, read_state

log = logging.getLogger("jdaso")


class PipelineCheckpoints:
    """Saves and restores a pipeline's state, in a folder that all nodes see.

        partitions-4/holding.json    which rows of which parameters each partition holds
        partitions-4/0/  ...         checkpoints of each partition, by its replicas

    Each partition is saved by its own replicas, as `jdaso.checkpoint.Checkpoints` does it: in the
    background, completely or not at all, including exchanges in flight between replicas. A step
    counts as saved once all partitions have saved it. If the number of partitions and their
    parameters are unchanged, each partition restores its own part, bit for bit. Otherwise each node
    reads the rows that it needs, one old partition after another: floats become the mean over the
    old replicas, and exchanges in flight are dropped.

    Args:
        folder: created if missing; on a file system that all nodes share.
        pipeline: the one whose states are saved.
        every_steps: steps between the saves that `after` makes.
        keep_last: number of complete checkpoints to keep.
        stop_signals: signals that ask the run to save and end; see `Checkpoints`.

    Raises:
        CheckpointError: as `Checkpoints`.

    On failure: a failed save is logged at once and complete checkpoints stay; the next `save` or
    `wait` raises on all nodes.
    """

    def __init__(
        self,
        folder: str | Path,
        pipeline: Pipeline,
        *,
        every_steps: int = 1000,
        keep_last: int = 2,
        stop_signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1),
    ):
        signals = _signals.check(stop_signals)
        self._pipeline, self._session = pipeline, pipeline.session
        self._root = folder_of_all(folder, self._session, "use a pipeline's checkpoints")
        self.every_steps = every_steps
        partitions = pipeline.plan.num_partitions
        self._own = self._root / f"partitions-{partitions}"
        holding, said = pipeline.plan.holding, ""
        if self._session.node == 0:
            try:
                self._own.mkdir(parents=True, exist_ok=True)
                self._check_holding(holding)
                for lock in self._root.glob("partitions-*/*/lock"):
                    if lock.parents[1] != self._own:
                        folder_of(lock.parent).sweep_if_free()
            except (OSError, ValueError) as error:
                said = f"{shown(self._own)} cannot be used: {error}"
        self._raise_together(said)
        if not appears(self._own / "holding.json"):
            said = (
                f"Node {self._session.node} on host {self._session.topology.host} does not see "
                f"{shown(self._own)}. Give a folder on a file system that all nodes share."
            )
        self._raise_together(said)
        self._checkpoints = Checkpoints(
            self._own / str(pipeline.grid.partition),
            pipeline.replicas,
            every_steps=every_steps,
            keep_last=keep_last + 1,  # other partitions may still be writing the newest step
            stop_signals=(),
        )
        self._session.control.detector.stopping.on_signals(signals)

    def after(self, step: int, state: PipelineState) -> None:
        """Saves if a save is due or the run must stop; call this after each step.

        Args:
            step: completed updates, the same on all nodes.
            state: the state that the next step needs.

        Raises:
            Stopped: the run was asked to stop; its state is saved.
        """
        stops = self._session.control.detector.stops_at(step)
        if stops or step % self.every_steps == 0:
            self.save(step, state)
        if stops:
            self.wait()
            raise_stopped(self._session, step)

    def save(self, step: int, state: PipelineState) -> None:
        """Copies a state to the host and starts to write it; all nodes call this together.

        The previous save must first be complete on all partitions: otherwise a partition that
        writes faster could delete an old step before another has written the next, and the
        partitions would have no step in common.

        Raises:
            CheckpointError: the previous save failed on a node.
        """
        self.wait()
        self._checkpoints.save(step, state)

    def wait(self) -> None:
        """Waits until all nodes have finished their current save.

        Raises:
            CheckpointError: the last save failed on a node.
        """
        said = ""
        try:
            self._checkpoints.wait()
        except CheckpointError as error:
            said = str(error)
        self._raise_together(said)

    def restore(self, like: PipelineState) -> tuple[PipelineState, int]:
        """Restores the newest step that all partitions have saved.

        Args:
            like: from `Pipeline.init`.

        Returns:
            The state, and the number of updates it has seen; `like` and 0 if nothing was saved.

        Raises:
            CheckpointError: on all nodes; the checkpoint is damaged or belongs to another model or
                optimizer.
        """
        self._session.require_usable()
        self.wait()
        said, found = "", ""
        if self._session.node == 0:
            try:
                found = json.dumps(newest(self._root, self._pipeline.plan.num_partitions))
            except (CheckpointError, OSError) as error:
                said = str(error)
        self._raise_together(said)
        latest = json.loads(self._session.control.everyone("restore a pipeline", found)[0])
        if latest is None:
            return like, 0
        step, partitions = latest
        if partitions == self._pipeline.plan.num_partitions:
            said, restored = "", (like, step)
            try:
                restored = self._checkpoints.restore(like, step)
            except (CheckpointError, OSError) as error:
                said = str(error)
            self._raise_together(said)
            return restored
        said, restored = "", like
        try:
            restored = read_state(self._root, step, partitions, like, self._pipeline)
        except (CheckpointError, OSError) as error:
            said = str(error)
        self._raise_together(said)
        if self._session.node == 0:
            log.warning(
                "%s The checkpoint of step %d has %d partitions, this run has %d: floats become "
                "the mean over its replicas, and exchanges in flight are dropped.",
                self._session.topology.prefix(),
                step,
                partitions,
                self._pipeline.plan.num_partitions,
            )
        return restored, step

    def _check_holding(self, holding: Holding) -> None:
        """Writes `holding.json`; refuses a folder whose partitions hold other parameters."""
        path = self._own / "holding.json"
        text = json.dumps([[unit.leaf, unit.begin, unit.end, unit.users] for unit in holding.units])
        if path.exists() and path.read_text() != text:
            raise CheckpointError(
                f"its checkpoints are of {self._own.name.split('-')[1]} partitions that hold other "
                "parameters than these do. Give the boundaries that they were made with "
                "(boundaries=...), or another folder."
            )
        part = path.with_suffix(".part")
        part.write_text(text)
        os.replace(part, path)

    def _raise_together(self, said: str) -> None:
        raise_together(self._session, "use a pipeline's checkpoints", said)
