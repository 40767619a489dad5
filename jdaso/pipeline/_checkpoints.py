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

    Each partition is saved by its own replicas as `jdaso.checkpoint.Checkpoints` does it: in the
    background, whole or not at all, with what is in flight between replicas. A step counts as saved
    when all partitions have saved it. With as many partitions that hold the same, each restores its
    own, bit for bit. Else each node reads the rows that it needs, one old partition after another:
    floats become the mean of the old replicas, and what was in flight is dropped.

    Args:
        folder: made where it is missing; on a file system that all nodes share.
        pipeline: whose states they are.
        every_steps: how often `after` saves.
        keep_last: how many complete checkpoints stay.
        stop_signals: signals that ask the run to save and end; see `Checkpoints`.

    Raises:
        CheckpointError: as `Checkpoints`.

    On failure: a save that fails is logged at once; what is complete stays, and the next `save`, or
    `wait`, raises on all nodes.
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
            keep_last=keep_last + 1,  # one may be there that other partitions still write
            stop_signals=(),
        )
        self._session.control.detector.stopping.on_signals(signals)

    def after(self, step: int, state: PipelineState) -> None:
        """Call it after each step: saves where it is time to, or where the run is told to stop.

        Args:
            step: completed updates, the same on all nodes.
            state: what the next step needs.

        Raises:
            Stopped: the run was told to stop, and is saved.
        """
        stops = self._session.control.detector.stops_at(step)
        if stops or step % self.every_steps == 0:
            self.save(step, state)
        if stops:
            self.wait()
            raise_stopped(self._session, step)

    def save(self, step: int, state: PipelineState) -> None:
        """Copies a state to the host and begins to write it; all nodes call it together.

        First the save before it must be whole on all partitions: else one that writes faster could
        give up an old step before another has the next one, and no step would be common to all.

        Raises:
            CheckpointError: the save before it failed on a node.
        """
        self.wait()
        self._checkpoints.save(step, state)

    def wait(self) -> None:
        """Waits until all nodes have written what they were saving.

        Raises:
            CheckpointError: the last save of a node failed.
        """
        said = ""
        try:
            self._checkpoints.wait()
        except CheckpointError as error:
            said = str(error)
        self._raise_together(said)

    def restore(self, like: PipelineState) -> tuple[PipelineState, int]:
        """The newest step that all partitions have saved.

        Args:
            like: from `Pipeline.init`.

        Returns:
            The state, and how many updates it has seen; `like` and 0 if there is none.

        Raises:
            CheckpointError: on all nodes; it is damaged, or of another model or optimizer.
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
                "%s The checkpoint of step %d is of %d partitions, and here are %d: floats become "
                "the mean of its replicas, and what was in flight is dropped.",
                self._session.topology.prefix(),
                step,
                partitions,
                self._pipeline.plan.num_partitions,
            )
        return restored, step

    def _check_holding(self, holding: Holding) -> None:
        """Writes down who holds what; refuses a folder of others with as many partitions."""
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
