"""Restores a checkpoint where nodes have, or had, several ranks: each reads what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._jax.world import spans_processes
from .._payload.layout import is_float
from .._session import Session
from ._files import CheckpointError, DamagedError, Manifest, SavedLeaf, plain_dtype
from ._overlaps import Wanted, read_overlaps
from ._pieces import SavedPiece, assembled, wanted_of
from ._resize import OF_SEVERAL_NODES, own_keys
from ._state import SavedValue, data_of, from_host, is_flight, unlike

Pieces = dict[str, list[SavedPiece]]
"""The parts of each leaf that this rank needs, by the leaf's file."""


def read_pieces(
    folder: Path,
    first: Manifest,
    here: Sequence[SavedValue],
    session: Session,
    *,
    goes_on: bool,
    partly: bool = False,
) -> Pieces:
    """Reads what this rank needs of a state.

    If the run continues on as many nodes as before, a node's arrays are what that node saved;
    otherwise floats are the mean over the old nodes, formed in float64, and the rest is node 0's.

    Args:
        folder: of the checkpoint.
        first: rank 0's manifest.
        here: leaves of the state to restore into.
        session: the nodes.
        goes_on: whether the run continues from here, with its exchanges in flight.
        partly: whether the state may lack leaves of the checkpoint.

    Raises:
        CheckpointError: the trees differ, or a part is missing or damaged.
    """
    if first.parted:
        raise CheckpointError(
            "The devices of a node had diverged (local_every > 1) when this checkpoint was saved, "
            "and nodes of several ranks cannot restore that. Restore it with ranks_per_node=1."
        )
    same = goes_on and first.num_nodes == session.num_nodes
    nodes = [session.node] if same else list(range(first.num_nodes))
    found: Pieces = {}
    sums: dict[str, list[Any]] = {}  # of floats; of keys, those of all nodes
    for node in nodes:
        mine = _of_node(folder, first, here, session, node, partly)
        found = found or mine
        if len(nodes) == 1:
            break
        for part in (first, *first.parts.values()):
            part.small.clear()  # those of many nodes could fill the memory
        first.parts.clear()
        for value in here:
            _add(sums, value.leaf, mine[value.leaf.file])
    for value in here if len(nodes) > 1 else ():
        if value.leaf.file in sums:
            found[value.leaf.file] = _mean(
                value,
                sums[value.leaf.file],
                found[value.leaf.file],
                len(nodes),
                node=session.node if goes_on else 0,
            )
    return found


def leaves_of(session: Session, here: Sequence[SavedValue], found: Pieces) -> list[Any]:
    """Returns the leaves of a state from the parts that this rank has of them."""
    return [
        assembled(value.value, found[value.leaf.file])
        if spans_processes(value.value)
        else from_host(value, found[value.leaf.file][0].data, session.mesh)
        for value in here
    ]


def _add(sums: dict[str, list[Any]], leaf: SavedLeaf, pieces: Sequence[SavedPiece]) -> None:
    """Adds what one old node had of a leaf."""
    if leaf.common:
        return
    if leaf.dtype.startswith("key<"):
        rows = sums.setdefault(leaf.file, [[] for _ in pieces])
        for of_nodes, piece in zip(rows, pieces, strict=True):
            of_nodes.append(piece.data)
    elif pieces and is_float(pieces[0].data.dtype):
        wide = np.complex128 if np.iscomplexobj(pieces[0].data) else np.float64
        totals = sums.setdefault(leaf.file, [np.zeros(x.data.shape, wide) for x in pieces])
        for total, piece in zip(totals, pieces, strict=True):
            total += piece.data


def _mean(
    value: SavedValue,
    sums: Sequence[Any],
    first: Sequence[SavedPiece],
    nodes: int,
    *,
    node: int,
) -> list[SavedPiece]:
    """The pieces combined from those of all old nodes, of which the first node's are given."""
    if value.leaf.dtype.startswith("key<"):
        impl = jax.random.key_impl(value.value)
        found = [own_keys(np.stack(rows), impl, node) for rows in sums]
    else:
        found = [(x / nodes).astype(y.data.dtype) for x, y in zip(sums, first, strict=True)]
    return [SavedPiece(piece.begin, data) for piece, data in zip(first, found, strict=True)]


def _of_node(
    folder: Path,
    first: Manifest,
    here: Sequence[SavedValue],
    session: Session,
    node: int,
    partly: bool,
) -> Pieces:
    """Reads this rank's part of what one old node had."""
    found: Pieces = {}
    for leaf, value in here:
        dtype = np.dtype(plain_dtype(leaf.dtype))
        found[leaf.file] = wanted_of(data_of(value), dtype)
    copied = dict.fromkeys(found, 0)
    ranks = first.ranks_per_node
    same_ranks = ranks == session.ranks_per_node
    whole_of = node * ranks + (session.topology.place if same_ranks else 0)
    for rank in sorted({0, *range(node * ranks, (node + 1) * ranks)}):
        manifest = part_of(folder, rank, first)
        mine = [
            (saved, value.leaf.file)
            for saved, value in _fitting(manifest, here, partly=partly)
            if (rank == 0 if saved.common else rank >= node * ranks)
            and (saved.whole is not None or saved.common or rank == whole_of)
        ]
        wanted = [Wanted(saved, found[file]) for saved, file in mine]
        for (_, file), count in zip(mine, read_overlaps(folder, manifest, wanted), strict=True):
            copied[file] += count
    for leaf, _ in here:
        size = sum(piece.data.size for piece in found[leaf.file])
        lacks = leaf.field in OF_SEVERAL_NODES and 1 in (first.num_nodes, session.num_nodes)
        if copied[leaf.file] != size and not lacks:
            raise DamagedError(f"{folder}: not all of leaf {leaf.path} is there.")
    return found


def part_of(folder: Path, rank: int, first: Manifest) -> Manifest:
    """Returns a rank's manifest, which that of the first caches.

    Raises:
        DamagedError: the manifest is missing, damaged, or of another save than the first one.
    """
    if rank == first.node:
        return first
    if rank not in first.parts:
        found = Manifest.read(folder, rank)
        if (found.run, found.number) != (first.run, first.number):
            raise DamagedError(f"{folder}: the parts of nodes 0 and {rank} do not belong together.")
        first.parts[rank] = found
    return first.parts[rank]


def _fitting(
    manifest: Manifest, here: Sequence[SavedValue], *, partly: bool
) -> list[tuple[SavedLeaf, SavedValue]]:
    """Returns the saved leaf of each leaf of the state.

    Raises:
        CheckpointError: the trees differ; names the leaf.
    """
    of_path = {leaf.path: leaf for leaf in manifest.leaves if not is_flight(leaf)}
    found = []
    for value in here:
        leaf, saved = value.leaf, of_path.pop(value.leaf.path, None)
        if saved is None and leaf.field in OF_SEVERAL_NODES:
            continue
        if saved is None or (saved.dtype, saved.full_shape) != (leaf.dtype, leaf.full_shape):
            raise unlike(leaf, saved)
        found.append((saved, value))
    for path, leaf in of_path.items():
        if not partly and leaf.field not in OF_SEVERAL_NODES:
            raise CheckpointError(
                f"The checkpoint has a leaf {path}, {leaf}, which the state here lacks. Restore "
                "into a state of the program that saved it."
            )
    return found
