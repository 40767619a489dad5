"""Checkpoints of pipelines, which can be restored with another number of partitions."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import _signals
from .._paths import shown
from ..checkpoint import CheckpointError, Checkpoints
from ..checkpoint._checkpoints import raise_stopped
from ..checkpoint._files import COMMON, Manifest, node_folder, plain_dtype, read_arrays
from ..checkpoint._folder import Folder, appears
from ..checkpoint._resize import BEGUN_ANEW
from ..checkpoint._state import from_host, is_flight, values_of
from ..checkpoint._together import folder_of_all, raise_together
from ._holding import Holding, Unit
from ._pipeline import Pipeline, PipelineState
from ._whole import leaves_about

_EMPTY_OF_ONE = ("snapshot", "error", "flight")
"""Fields that a replica without others does not have."""

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
                        _folder(lock.parent).sweep_if_free()
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
        self._session.control.lookout.stopping.on_signals(signals)

    def after(self, step: int, state: PipelineState) -> None:
        """Call it after each step: saves where it is time to, or where the run is told to stop.

        Args:
            step: completed updates, the same on all nodes.
            state: what the next step needs.

        Raises:
            Stopped: the run was told to stop, and is saved.
        """
        stops = self._session.control.lookout.stops_at(step)
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
                found = json.dumps(self._newest())
            except (CheckpointError, OSError) as error:
                said = str(error)
        self._raise_together(said)
        newest = json.loads(self._session.control.everyone("restore a pipeline", found)[0])
        if newest is None:
            return like, 0
        step, partitions = newest
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
            restored = self._read(step, partitions, like)
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

    def _newest(self) -> tuple[int, int] | None:
        """The newest step that all partitions of some number have saved, and that number."""
        found: list[tuple[int, bool, int]] = []
        own = self._pipeline.plan.num_partitions
        for folder in sorted(self._root.glob("partitions-*")):
            number = int(folder.name.split("-")[1])
            steps = [_steps(folder / str(p)) for p in range(number)]
            common = set.intersection(*map(set, steps))
            found += [(step, number == own, number) for step in common]
        return (max(found)[0], max(found)[2]) if found else None

    def _read(self, step: int, partitions: int, like: PipelineState) -> PipelineState:
        """This rank's state, from the parts of another number of partitions."""
        folder = self._root / f"partitions-{partitions}"
        units = [
            Unit(leaf, begin, end, tuple(users))
            for leaf, begin, end, users in json.loads((folder / "holding.json").read_text())
        ]
        holding = self._pipeline.plan.holding
        old = Holding(
            holding.tree,
            holding.scalars,
            holding.shapes,
            holding.dtypes,
            tuple(units),
            partitions,
        )
        rank = self._pipeline.grid.partition
        here = values_of(like, shares=True)
        about = leaves_about(like._replace(state=None), holding.whole_structs(), _is_of)
        about += [None] * len(jax.tree.leaves(like.state))
        leaf_of = {value.leaf.path: leaf for value, leaf in zip(here, about, strict=True)}
        rows: dict[str, dict[int, np.ndarray]] = {value.leaf.path: {} for value in here}
        # The model's: what another rank holds is empty here.
        states = {v.leaf.path: v.leaf.shape for v in here if v.leaf.path.startswith(".state")}
        anew = {value.leaf.path for value in here if value.leaf.field in BEGUN_ANEW}
        for partition in range(partitions):
            arrays = _read_partition(folder / str(partition), step)
            for value in here:
                path = value.leaf.path
                if path not in arrays and value.leaf.field in _EMPTY_OF_ONE:
                    arrays[path] = np.zeros(value.leaf.shape, plain_dtype(value.leaf.dtype))
                if path not in arrays:
                    raise CheckpointError(
                        f"The checkpoint of step {step} has no leaf {path}. Restore it with the "
                        "model, the optimizer and the phases that it was saved with."
                    )
                rows[path][partition] = arrays[path]
            del arrays
            for path, of in rows.items():  # what is not needed here is given up at once
                leaf = leaf_of[path]
                if leaf is None and path in states:  # one partition holds it, others nothing
                    if of[partition].shape == states[path] or partition == 0:
                        rows[path] = {0: of[partition]}
                elif leaf is None:
                    alike = path in anew or np.array_equal(of[0], of[partition], equal_nan=True)
                    if of[0].ndim and not alike:
                        raise CheckpointError(
                            f"Leaf {path} of step {step} is not the same on all partitions, and it "
                            "is not said whose it is. Restore it with as many partitions as it "
                            "was saved with."
                        )
                    rows[path] = {0: of[0]}
                elif partition in of and not _needs(old, partition, holding, rank, leaf):
                    del of[partition]
        found = []
        for value in here:
            leaf, of = leaf_of[value.leaf.path], rows[value.leaf.path]
            if value.leaf.field in BEGUN_ANEW:
                of, leaf = {0: np.zeros_like(of[0])}, None
            array = of[0] if leaf is None else _assemble(of, old, holding, rank, leaf, value.leaf)
            if states.get(value.leaf.path) == (0,):
                array = np.zeros((0,), array.dtype)
            dtype = np.dtype(plain_dtype(value.leaf.dtype))
            if tuple(array.shape) != tuple(value.leaf.shape):
                raise CheckpointError(
                    f"Leaf {value.leaf.path} is {array.dtype}{list(array.shape)} in the checkpoint "
                    f"of step {step}, and {value.leaf} here."
                )
            array = np.asarray(array, dtype)
            found.append(from_host(value, array, self._session.mesh))
        return jax.tree.unflatten(jax.tree.structure(like), found)

    def _raise_together(self, said: str) -> None:
        raise_together(self._session, "use a pipeline's checkpoints", said)


def _folder(path: Path) -> Folder:
    return Folder(path, keep_last=1, keep_best=0, best="max")


def _steps(folder: Path) -> list[int]:
    return [manifest.step for _, manifest in _folder(folder).complete()]


def _read_partition(folder: Path, step: int) -> dict[str, np.ndarray]:
    """The arrays of a partition by their paths: of floats the mean of its replicas."""
    complete = _folder(folder).complete()
    path, first = next((p, m) for p, m in reversed(complete) if m.step == step)
    totals: dict[str, Any] = {}
    for node in range(first.nodes):
        manifest = Manifest.read(path, node)
        manifest.verify(path)
        leaves = [leaf for leaf in manifest.leaves if not is_flight(leaf)]
        own = [leaf for leaf in leaves if not leaf.common]
        arrays = read_arrays(path, node_folder(node), own)
        if node == 0:
            common = [leaf for leaf in leaves if leaf.common]
            both = arrays | read_arrays(path, COMMON, common)
            totals = {leaf.path: both[leaf.file] for leaf in leaves}
            continue
        for leaf in own:
            if np.issubdtype(totals[leaf.path].dtype, np.floating):
                wide = totals[leaf.path].astype(np.float64)
                totals[leaf.path] = wide + (arrays[leaf.file] - wide) / (node + 1)
    return totals


def _is_of(leaf: Any, param: Any) -> bool:
    """Whether a leaf may be about a parameter, of which this rank may hold some rows or none."""
    shape = tuple(leaf.shape)
    rows = len(shape) == len(param.shape) and shape[1:] == param.shape[1:]
    return shape == (0,) or rows


def _needs(old: Holding, partition: int, new: Holding, rank: int, leaf: int) -> bool:
    return any(
        new.units[k].begin < old.units[j].end and old.units[j].begin < new.units[k].end
        for k in new.owned_by(rank)
        if new.units[k].leaf == leaf
        for j in old.owned_by(partition)
        if old.units[j].leaf == leaf
    )


def _assemble(
    parts: dict[int, np.ndarray], old: Holding, new: Holding, rank: int, leaf: int, like: Any
) -> np.ndarray:
    """A rank's rows of an array that is about a parameter."""
    if not new.rows_held(leaf, rank):
        return np.zeros(like.shape, plain_dtype(like.dtype))
    owners = old.owners(leaf)
    if len(owners) == 1 and len(new.owners(leaf)) == 1:
        return parts[owners[0]]
    whole: np.ndarray | None = None
    for partition, array in parts.items():
        if array.ndim == 0 or array.shape[0] != old.rows_held(leaf, partition):
            raise CheckpointError(
                f"Leaf {like.path} has no row for each row of its parameter, whose rows several "
                "partitions share. Restore it with as many partitions as it was saved with."
            )
        if whole is None:
            whole = np.zeros((new.shapes[leaf][0], *array.shape[1:]), array.dtype)
        row = 0
        for unit in (old.units[k] for k in old.owned_by(partition)):
            if unit.leaf == leaf:
                whole[unit.begin : unit.end] = array[row : row + unit.end - unit.begin]
                row += unit.end - unit.begin
    assert whole is not None
    mine = (new.units[k] for k in new.owned_by(rank))
    return np.concatenate([whole[u.begin : u.end] for u in mine if u.leaf == leaf])
