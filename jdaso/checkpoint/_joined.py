"""Restores a checkpoint where nodes have, or had, several ranks: each reads what it needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._compat import spans_processes
from .._errors import NodeError
from .._payload.layout import is_float
from .._session import Session
from ._arrays import read_arrays
from ._files import (
    COMMON,
    CheckpointError,
    DamagedError,
    Leaf,
    Manifest,
    is_small,
    node_folder,
    plain_dtype,
)
from ._pieces import Piece, assembled, copy_overlap, overlaps, places_of, saved_pieces, wanted_of
from ._resize import BEGUN_ANEW, own_keys
from ._state import Value, adopt_flights, data_of, flights_fit, from_host, is_flight
from ._together import together

log = logging.getLogger("jdaso")

_WHAT = "restore a checkpoint"

Pieces = dict[str, list[Piece]]
"""The parts of each leaf that this rank needs, by the leaf's file."""


def read_pieces(
    folder: Path,
    first: Manifest,
    here: Sequence[Value],
    session: Session,
    *,
    goes_on: bool,
    partly: bool = False,
) -> Pieces:
    """Reads what this rank needs of a state.

    With as many nodes as before, and to go on, a node's arrays are what that node saved; otherwise
    floats are the mean over the old nodes, formed in float64, and the rest is node 0's.

    Args:
        folder: of the checkpoint.
        first: rank 0's manifest.
        here: leaves of the state to restore into.
        session: the nodes.
        goes_on: whether the run goes on from here, and what was in flight with it.
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
        for value in here if len(nodes) > 1 else ():
            _add(sums, value.leaf, mine[value.leaf.file])
    for value in here if len(nodes) > 1 else ():
        if value.leaf.file in sums:
            found[value.leaf.file] = _mean(
                value, sums[value.leaf.file], found[value.leaf.file], len(nodes), session
            )
    return found


def restore_joined(
    session: Session, folder: Path, first: Manifest, here: Sequence[Value]
) -> list[Any]:
    """Returns the restored leaves of a state, with what was in flight if the layout is as it was.

    Raises:
        CheckpointError: on all ranks; see `Checkpoints.restore`.
    """
    own = _own_flights(session, folder, first)
    if own is None and first.flights and any(x.anchored for x in session.completions.values()):
        raise CheckpointError(
            f"The checkpoint of step {first.step} was saved by {first.num_nodes} nodes of "
            f"{first.ranks_per_node} ranks, with parameters divided over other devices than here "
            f"({session.num_nodes} nodes of {session.ranks_per_node} ranks), and narrow wires and "
            "outer optimizers go on from numbers that lie as these did. Restore it on the layout "
            'that it was saved on, or train with merge="corrected" and wire="float32".'
        )
    with together(session, _WHAT):
        found = read_pieces(folder, first, here, session, goes_on=True)
        if own is not None:
            arrays = read_own_flights(folder, own)
            try:
                adopt_flights(session, own.flights, arrays)
            except NodeError as error:
                raise CheckpointError(str(error)) from error
    if own is None:
        log.warning(
            "The checkpoint of step %d was saved on another layout of nodes and devices: what was "
            "in flight is dropped.",
            first.step,
        )
        for leaf, _ in here:
            for piece in found[leaf.file] if leaf.field in BEGUN_ANEW else ():
                piece.data[...] = 0
    return leaves_of(session, here, found)


def leaves_of(session: Session, here: Sequence[Value], found: Pieces) -> list[Any]:
    """Returns the leaves of a state from the parts that this rank has of them."""
    return [
        assembled(value.value, found[value.leaf.file])
        if spans_processes(value.value)
        else from_host(value, found[value.leaf.file][0].data, session.mesh)
        for value in here
    ]


def _own_flights(session: Session, folder: Path, first: Manifest) -> Manifest | None:
    """Returns this rank's manifest if all ranks can go on with what they had in flight."""
    own, fits = None, False
    with together(session, _WHAT):
        place = first.ranks_per_node, first.nodes
        if place == (session.ranks_per_node, session.topology.num_ranks):
            own = Manifest.read(folder, session.topology.rank)
            fits = flights_fit(session, own.flights)
    said = session.all_ranks.everyone(_WHAT, "yes" if fits else "")
    return own if all(said) else None


def _add(sums: dict[str, list[Any]], leaf: Leaf, pieces: Sequence[Piece]) -> None:
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
    value: Value, sums: Sequence[Any], first: Sequence[Piece], nodes: int, session: Session
) -> list[Piece]:
    """The pieces that follow from those of all old nodes, of which the first are given."""
    if value.leaf.dtype.startswith("key<"):
        impl = jax.random.key_impl(value.value)
        found = [own_keys(np.stack(rows), impl, session) for rows in sums]
    else:
        found = [(x / nodes).astype(y.data.dtype) for x, y in zip(sums, first, strict=True)]
    return [Piece(piece.begin, data) for piece, data in zip(first, found, strict=True)]


def _of_node(
    folder: Path,
    first: Manifest,
    here: Sequence[Value],
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
        manifest = Manifest.read(folder, rank)
        if (manifest.run, manifest.number) != (first.run, first.number):
            raise DamagedError(f"{folder}: the parts of ranks 0 and {rank} do not belong together.")
        pairs = _fitting(manifest, here, partly=partly)
        for name, common in ((node_folder(rank), False), (COMMON, True)):
            if common and rank != 0 or not common and rank < node * ranks:
                continue
            of_part = [leaf for leaf in manifest.leaves if leaf.common == common]
            mine = [
                (saved, value)
                for saved, value in pairs
                if saved.common == common
                and (saved.whole is not None or common or rank == whole_of)
                and any(overlaps(*p, x) for p in places_of(saved) for x in found[value.leaf.file])
            ]
            wanted = [saved for saved, _ in mine]
            manifest.verify(folder, (name,), wanted)
            for some in _in_turn(mine):
                arrays = read_arrays(folder, name, of_part, [saved for saved, _ in some])
                for saved, value in some:
                    for piece in saved_pieces(saved, arrays[saved.file]):
                        for room in found[value.leaf.file]:
                            copied[value.leaf.file] += copy_overlap(piece, room)
    for leaf, _ in here:
        if copied[leaf.file] != sum(piece.data.size for piece in found[leaf.file]):
            raise DamagedError(f"{folder}: not all of leaf {leaf.path} is there.")
    return found


def _in_turn(pairs: Sequence[tuple[Leaf, Value]]) -> Iterator[Sequence[tuple[Leaf, Value]]]:
    """Yields what is read at once: all small leaves, and each other one by itself."""
    small = [pair for pair in pairs if is_small(pair[0])]
    if small:
        yield small
    yield from ([pair] for pair in pairs if not is_small(pair[0]))


def _fitting(
    manifest: Manifest, here: Sequence[Value], *, partly: bool
) -> list[tuple[Leaf, Value]]:
    """Returns the saved leaf of each leaf of the state.

    Raises:
        CheckpointError: the trees differ; names the leaf.
    """
    of_path = {leaf.path: leaf for leaf in manifest.leaves if not is_flight(leaf)}
    found = []
    for value in here:
        leaf, saved = value.leaf, of_path.pop(value.leaf.path, None)
        if saved is None or (saved.dtype, saved.full_shape) != (leaf.dtype, leaf.full_shape):
            said = "absent" if saved is None else str(saved)
            raise CheckpointError(
                f"Leaf {leaf.path} is {said} in the checkpoint and {leaf} here. Restore into a "
                "state of the program that saved it."
            )
        found.append((saved, value))
    for path, leaf in of_path.items():
        if not partly:
            raise CheckpointError(
                f"The checkpoint has a leaf {path}, {leaf}, which the state here lacks. Restore "
                "into a state of the program that saved it."
            )
    return found


def read_own_flights(folder: Path, own: Manifest) -> dict[str, Any]:
    """Reads what this rank saved of late exchanges, by file name."""
    name, of_part = node_folder(own.node), [leaf for leaf in own.leaves if not leaf.common]
    wanted = [leaf for leaf in of_part if is_flight(leaf)]
    if not wanted:
        return {}
    own.verify(folder, (name,), wanted)
    read = read_arrays(folder, name, of_part, wanted)
    return {file: np.array(x) for file, x in read.items()}  # the file may be removed
