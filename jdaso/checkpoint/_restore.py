"""One save of a part, restored by the nodes that hold the part."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from .._errors import NodeError
from .._session import Session
from .._types import PyTree
from ._arrays import read_arrays
from ._facts import check_facts
from ._files import COMMON, CheckpointError, DamagedError, Manifest, manifest_path, node_folder
from ._folder import appears
from ._joined import restore_joined
from ._resize import fit_leaves, read_flights, read_resized, spread
from ._state import (
    Value,
    adopt_flights,
    check_leaves,
    from_host,
    is_flight,
    require_common_points,
    values_of,
)
from ._together import of_first, place_of, shares_leaves, together

log = logging.getLogger("jdaso")

_WHAT = "restore a checkpoint"


def restore(session: Session, folder: Path, like: PyTree) -> PyTree:
    """Restores one save on all nodes of a session, or on none.

    Raises:
        CheckpointError: on all nodes; see `Checkpoints.restore`.
    """
    node, nodes = place_of(session)
    session.reach("restore")
    with together(session, _WHAT):
        if not appears(manifest_path(folder, 0)):
            raise DamagedError(f"{folder} is not seen by node {node}.")
        first = Manifest.read(folder, 0)
    here = values_of(like, shares=shares_leaves(session))
    check_facts(first, session)
    require_common_points(session, first.num_nodes)
    if session.joined or first.ranks_per_node > 1:
        leaves = restore_joined(session, folder, first, here)
        return jax.tree.unflatten(jax.tree.structure(like), leaves)
    flies = any(in_flight for _, _, _, in_flight, _ in first.flights)
    if first.nodes != nodes or (flies and first.begun != nodes):
        arrays = _read_resized(session, folder, first, here, (node, nodes))
    else:
        arrays = _read(session, folder, first, here, node)
        with together(session, _WHAT):
            try:
                adopt_flights(session, first.flights, arrays)
            except NodeError as error:
                raise CheckpointError(str(error)) from error
    leaves = [from_host(value, arrays[value.leaf.file], session.mesh) for value in here]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _read(
    session: Session, folder: Path, first: Manifest, here: Sequence[Value], node: int
) -> dict[str, np.ndarray]:
    """Reads this node's arrays and the common ones."""
    arrays, name = {}, node_folder(node)
    with together(session, _WHAT):
        appears(manifest_path(folder, node))
        own = first if node == 0 else Manifest.read(folder, node)
        if (own.run, own.number) != (first.run, first.number):
            raise DamagedError(f"{folder}: the parts of nodes 0 and {node} do not belong together.")
        first.verify(folder, (COMMON,))
        own.verify(folder, (name,))
        check_leaves([leaf for leaf in own.leaves if not is_flight(leaf)], here, first.parted)
        for part, of in ((COMMON, first), (name, own)):
            leaves = [leaf for leaf in of.leaves if leaf.common == (part == COMMON)]
            arrays |= read_arrays(folder, part, leaves)
    return arrays


def _read_resized(
    session: Session, folder: Path, first: Manifest, here: Sequence[Value], place: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Reads the parts of all old nodes, combined."""
    arrays, flights = {}, {}
    with together(session, _WHAT):
        leaves = [leaf for leaf in first.leaves if not is_flight(leaf)]
        fitting = fit_leaves(leaves, here, first.parted)
        if place[0] == 0:
            arrays = read_resized(folder, fitting, first.nodes)
            flights = read_flights(folder, first)
    log.warning(
        "The checkpoint of step %d has %d nodes, this run has %d: floats become the mean over "
        "all nodes, and what was in flight is dropped.",
        first.step,
        first.nodes,
        place[1],
    )
    _spread_flights(session, first, flights)
    return spread(here, fitting, first.nodes, arrays, session)


def _spread_flights(session: Session, first: Manifest, arrays: dict[str, np.ndarray]) -> None:
    """Gives all nodes the common points and outer optimizers that node 0 has read."""
    if session.num_nodes == 1:
        return
    names, found = of_first(session, _WHAT, lambda: list(arrays)), {}
    for name in names:
        about = next(leaf for leaf in first.leaves if leaf.file == name)
        room = np.zeros(about.shape, about.dtype)
        found[name] = session.control.broadcast(arrays.get(name, room))
    settled = tuple((*x[:3], False, x[4]) for x in first.flights)
    kept = [(k, x) for k, x in enumerate(settled) if f"exchange{k}.anchor" in found]
    for k, flight in kept:
        begin = f"exchange{k}."
        own = {
            f"exchange0.{n.removeprefix(begin)}": x for n, x in found.items() if n.startswith(begin)
        }
        adopt_flights(session, [flight], own)
