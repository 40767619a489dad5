"""One save of a part, restored by the nodes that hold the part."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._jax.types import PyTree
from .._session import Session
from ._arrays import read_arrays
from ._facts import check_facts, has_other_phases, take_measured
from ._files import COMMON, CheckpointError, DamagedError, Manifest, manifest_path, node_folder
from ._folder import appears
from ._joined import leaves_of, part_of, read_pieces
from ._resize import BEGUN_ANEW, NEVER_STARTED, fit_leaves, read_resized, spread
from ._resumed import resume_flights
from ._state import SavedValue, check_leaves, dasos_in, from_host, is_flight, values_of
from ._together import place_of, shares_leaves, together

log = logging.getLogger("jdaso")

_WHAT = "restore a checkpoint"


def restore(session: Session, folder: Path, like: PyTree) -> PyTree:
    """Restores one save on all nodes of a session, or on none.

    Raises:
        CheckpointError: on all nodes; see `Checkpoints.restore`.
    """
    node, nodes = place_of(session)
    session.hooks.reach("restore")
    with together(session, _WHAT):
        if not appears(manifest_path(folder, 0)):
            raise DamagedError(f"{folder} is not seen by node {node}.")
        first = Manifest.read(folder, 0)
    here = values_of(like, shares=shares_leaves(session))
    take_measured(first, session)
    check_facts(first, session)
    flies = any(x.in_flight for x in first.flights)
    joined = session.joined or first.ranks_per_node > 1
    if joined:
        same = first.num_nodes == session.num_nodes
    else:
        same = first.nodes == nodes and not (flies and first.begun != nodes)
    if not same:
        log.warning(
            "The checkpoint of step %d has %d nodes, this run has %d: floats become the mean over "
            "all nodes, and what was in flight is dropped.",
            first.step,
            first.num_nodes,
            nodes // session.ranks_per_node,
        )
    if joined:
        leaves = _restore_joined(session, folder, first, here, same=same)
    else:
        leaves = _restore_plain(session, folder, first, here, (node, nodes), same=same)
    state = jax.tree.unflatten(jax.tree.structure(like), leaves)
    if not session.simulated:
        for daso in dasos_in(state):
            session.optimizers.note_model(int(np.max(np.asarray(daso.held[0]))))
    return state


def _restore_joined(
    session: Session, folder: Path, first: Manifest, here: Sequence[SavedValue], *, same: bool
) -> list[Any]:
    """Returns a state's leaves where nodes have, or had, several ranks."""
    with together(session, _WHAT):
        found = read_pieces(folder, first, here, session, goes_on=True)
    if not resume_flights(session, folder, first, session.node if same else 0, same=same):
        anew = _begun_anew(session, first, here)
        for leaf, _ in here:
            for piece in found[leaf.file] if leaf.file in anew else ():
                piece.data[...] = anew[leaf.file]
    return leaves_of(session, here, found)


def _restore_plain(
    session: Session,
    folder: Path,
    first: Manifest,
    here: Sequence[SavedValue],
    place: tuple[int, int],
    *,
    same: bool,
) -> list[Any]:
    """Returns a state's leaves where each node has, and had, one rank."""
    if same:
        arrays = _read(session, folder, first, here, place[0])
    else:
        arrays = _read_resized(session, folder, first, here, place)
    if not resume_flights(session, folder, first, place[0] if same else 0, same=same):
        for file, value in _begun_anew(session, first, here).items():
            arrays[file] = np.full_like(arrays[file], value)
    return [from_host(value, arrays[value.leaf.file], session.mesh) for value in here]


def _begun_anew(
    session: Session, first: Manifest, here: Sequence[SavedValue]
) -> Mapping[str, int | np.ndarray]:
    """The leaves that begin anew, by file, with their values.

    A single node has no exchanges, and has kept the B, S and l that it began with. They are the
    program's own again if its phases differ.
    """
    of_one = first.num_nodes == 1 and session.num_nodes > 1 and not session.simulated
    anew = NEVER_STARTED if of_one else BEGUN_ANEW
    found = {leaf.file: anew[leaf.field] for leaf, _ in here if leaf.field in anew}
    if of_one and has_other_phases(first, session):
        log.warning(
            "The checkpoint of step %d is of one node, which had other phases: B, S and the state "
            "of a plateau begin anew, with those of this program.",
            first.step,
        )
        phases = ((leaf, value) for leaf, value in here if leaf.field == "phase")
        found |= {leaf.file: np.asarray(value) for leaf, value in phases}
    return found


def _read(
    session: Session, folder: Path, first: Manifest, here: Sequence[SavedValue], node: int
) -> dict[str, np.ndarray]:
    """Reads this node's arrays and the common ones."""
    arrays, name = {}, node_folder(node)
    with together(session, _WHAT):
        appears(manifest_path(folder, node))
        own = part_of(folder, node, first)
        of_state = [leaf for leaf in own.leaves if not is_flight(leaf)]
        first.verify(folder, (COMMON,), of_state)
        own.verify(folder, (name,), of_state)
        check_leaves(of_state, here, first.parted)
        _require_devices(first, session)
        for part, of in ((COMMON, first), (name, own)):
            leaves = [leaf for leaf in of.leaves if leaf.common == (part == COMMON)]
            wanted = [leaf for leaf in leaves if not is_flight(leaf)]
            arrays |= read_arrays(folder, part, leaves, wanted, of.small)
    return arrays


def _require_devices(first: Manifest, session: Session) -> None:
    if first.parted and first.parted != len(session.devices):
        raise CheckpointError(
            f"The checkpoint has the replicas of {first.parted} devices of each node, which had "
            f"diverged (local_every > 1), and this node has {len(session.devices)}. Restore on as "
            "many, or save after a step in which they were averaged."
        )


def _read_resized(
    session: Session,
    folder: Path,
    first: Manifest,
    here: Sequence[SavedValue],
    place: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Reads the parts of all old nodes, combined."""
    arrays = {}
    with together(session, _WHAT):
        leaves = [leaf for leaf in first.leaves if not is_flight(leaf)]
        fitting = fit_leaves(leaves, here, first.parted)
        if place[0] == 0:
            arrays = read_resized(folder, fitting, first.nodes)
    return spread(here, fitting, first.nodes, arrays, session, node=session.node)
