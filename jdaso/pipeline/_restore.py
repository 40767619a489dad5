"""A pipeline's state from checkpoints of any number of partitions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._payload.layout import describe
from ..checkpoint import CheckpointError
from ..checkpoint._cutting import (
    NEVER_STARTED,
    Manifest,
    from_host,
    is_flight,
    plain_dtype,
    read_resized,
    values_of,
)
from ._optimizer.whole import leaves_about
from ._plan.holding import Holding, Unit
from ._run.grid import Grid
from ._state import PipelineState

_OF_STARTS = ("delay", "scale")
"""Further fields with a number for each fragment, which its next start sets."""


def read_state(
    folder: Path,
    parts: Sequence[Path],
    step: int,
    like: PipelineState,
    holding: Holding,
    grid: Grid,
) -> PipelineState:
    """Reads this rank's state from the parts of any number of partitions.

    Args:
        folder: of all partitions.
        parts: one save of each of them.
        step: its step.
        like: this rank's state before its first update.
        holding: the rows that each rank holds now.
        grid: the ranks.

    Raises:
        CheckpointError: a part is missing, damaged, or belongs to another model or optimizer.
    """
    old = _holding_of(folder, step, len(parts), holding)
    rank = grid.partition
    here = values_of(like, shares=True)
    about = leaves_about(like._replace(state=None), holding.whole_structs(), _is_of)
    about += [None] * len(jax.tree.leaves(like.state))
    leaf_of = {value.leaf.path: leaf for value, leaf in zip(here, about, strict=True)}
    rows: dict[str, dict[int, np.ndarray]] = {value.leaf.path: {} for value in here}
    # Leaves of the model's state: they are empty on ranks that do not hold them.
    states = {v.leaf.path: v.leaf.shape for v in here if v.leaf.path.startswith(".state")}
    # Partitions measure times, and receive losses, at moments of their own; all take the first's.
    fields = (*NEVER_STARTED, *_OF_STARTS, "phase")
    apart = {value.leaf.path for value in here if value.leaf.field in fields}
    for partition, part in enumerate(parts):
        arrays = _read_partition(part)
        for value in here:
            path = value.leaf.path
            if path not in arrays:
                raise CheckpointError(
                    f"The checkpoint of step {step} has no leaf {path}. Restore it with the "
                    "model, the optimizer and the phases that it was saved with."
                )
            rows[path][partition] = arrays[path]
        del arrays
        for path, of in rows.items():  # frees at once what this rank does not need
            leaf = leaf_of[path]
            if leaf is None and path in states:  # one partition holds the leaf, the others nothing
                if of[partition].shape == states[path] or partition == 0:
                    rows[path] = {0: of[partition]}
            elif leaf is None:
                alike = path in apart or np.array_equal(of[0], of[partition], equal_nan=True)
                if of[0].ndim and not alike:
                    raise CheckpointError(
                        f"Leaf {path} of step {step} is not the same on all partitions, so "
                        "its value here is unknown. Restore it with as many partitions as it was "
                        "saved with."
                    )
                rows[path] = {0: of[0]}
            elif partition in of and not _needs(old, partition, holding, rank, leaf):
                del of[partition]
    found = []
    for value in here:
        leaf, of = leaf_of[value.leaf.path], rows[value.leaf.path]
        if value.leaf.field in (*NEVER_STARTED, *_OF_STARTS):
            first = NEVER_STARTED.get(value.leaf.field)
            own = np.asarray(value.value)
            of, leaf = {0: own if first is None else np.full_like(own, first)}, None
        array = of[0] if leaf is None else _assemble(of, old, holding, rank, leaf, value.leaf)
        if states.get(value.leaf.path) == (0,):
            array = np.zeros((0,), array.dtype)
        dtype = np.dtype(plain_dtype(value.leaf.dtype))
        if tuple(array.shape) != tuple(value.leaf.shape):
            raise CheckpointError(
                f"Leaf {value.leaf.path} is {array.dtype}{list(array.shape)} in the checkpoint "
                f"of step {step}, and {value.leaf} here."
            )
        if array.dtype != dtype:
            raise CheckpointError(
                f"Leaf {value.leaf.path} is {array.dtype} in the checkpoint of step {step}, and "
                f"{dtype} here. Restore it with the model and optimizer that it was saved with."
            )
        found.append(from_host(value, array, grid.session.mesh))
    return jax.tree.unflatten(jax.tree.structure(like), found)


def _holding_of(folder: Path, step: int, partitions: int, here: Holding) -> Holding:
    """Returns the holding of the ranks that saved, which must be of the same parameters."""
    units = [
        Unit(leaf, begin, end, tuple(users))
        for leaf, begin, end, users in json.loads((folder / "holding.json").read_text())
    ]
    rows = {unit.leaf: unit.end for unit in units}  # the last one of each leaf
    own = {unit.leaf: unit.end for unit in here.units}
    what = "Restore it with the model that it was saved with."
    if len(rows) > len(own):
        raise CheckpointError(
            f"The checkpoint of step {step} has {len(rows)} arrays of parameters, and this model "
            f"has {len(own)}. {what}"
        )
    for leaf in rows:
        if rows[leaf] != own[leaf]:
            path = describe(here.whole_structs())[leaf].path
            raise CheckpointError(
                f"Parameter {path} has {rows[leaf]} rows in the checkpoint of step {step}, and "
                f"{own[leaf]} here. {what}"
            )
    return dataclasses.replace(here, units=tuple(units), ranks=partitions)


def _read_partition(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a partition by path; floats are averaged over its replicas."""
    first = Manifest.read(path, 0)
    leaves = {leaf.file: leaf for leaf in first.leaves if not is_flight(leaf)}
    arrays = read_resized(path, leaves, first.nodes)
    one = (file for file, x in leaves.items() if x.dtype.startswith("key<") and not x.common)
    arrays |= {file: arrays[file][0] for file in one}  # keys come from all replicas
    return {leaf.path: arrays[file] for file, leaf in leaves.items()}


def _is_of(leaf: Any, param: Any) -> bool:
    """Returns whether a leaf may belong to a parameter of which this rank holds some or no rows."""
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
    """Returns a rank's rows of an array that belongs to a parameter."""
    if not new.rows_held(leaf, rank):
        return np.zeros(like.shape, plain_dtype(like.dtype))
    owners = old.owners(leaf)
    if len(owners) == 1 and len(new.owners(leaf)) == 1:
        return parts[owners[0]]
    whole: np.ndarray | None = None
    for partition, array in parts.items():
        if array.ndim == 0 or array.shape[0] != old.rows_held(leaf, partition):
            raise CheckpointError(
                f"Leaf {like.path} does not have one row for each row of its parameter, whose rows "
                "several partitions share. Restore it with as many partitions as it was saved with."
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
