"""Exchanges in flight as a restored run resumes them, on the layout that saved them or another.

    saved by two ranks          restored by one             a leaf of 8 numbers
    rank 0: w[0:2], w[4:6]      w[0:4]  w[4:8]              each number is found in the array
    rank 1: w[2:4], w[6:8]                                  whose manifest gives its place

Each rank reads the overlaps with what it needs, a few leaves at a time. The same number of nodes
continues with all that each node had; on another number of nodes only the common points and the
outer optimizers continue, which all nodes share. If an exchange was in flight, an outer optimizer's
common point goes back to the mean of its snapshots, where the parameters are.

A leaf that fragments cut differently here has numbers that another fragment exchanged there.
Numbers in flight are merged with their new fragment; a fragment in flight changes nothing in other
numbers, and numbers without a fragment in flight here take part in its next exchange.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .._base.errors import NodeError
from .._engines.saved import COMMON, Saved
from .._session import Held, Session
from ._arrays import read_arrays
from ._files import COMMON as COMMON_FOLDER
from ._files import CheckpointError, DamagedError, Manifest, SavedLeaf, node_folder
from ._flights import SavedRows, by_leaf, held_by
from ._joined import part_of
from ._overlaps import Wanted, read_overlaps
from ._pieces import SavedPiece, pieces_in
from ._state import is_flight
from ._together import together

log = logging.getLogger("jdaso")

_WHAT = "restore a checkpoint"


class SavedArray(NamedTuple):
    """A saved array of an exchange.

    Attributes:
        number: of the exchange.
        kind: the kind of its numbers.
        path: of the leaf of the parameters that they belong to, if any.
        leaf: the array.
    """

    number: int
    kind: str
    path: str
    leaf: SavedLeaf


class Saves(NamedTuple):
    """The arrays that one rank has saved of exchanges.

    Attributes:
        manifest: of the rank.
        arrays: those that belong to leaves of the parameters.
        others: the others.
    """

    manifest: Manifest
    arrays: tuple[SavedArray, ...]
    others: tuple[SavedArray, ...]


def resume_flights(
    session: Session, folder: Path, first: Manifest, node: int, *, same: bool
) -> bool:
    """Gives the host what it held of saved exchanges; all ranks call this together.

    Args:
        session: the nodes.
        folder: of the checkpoint.
        first: rank 0's manifest.
        node: the node whose numbers this one takes.
        same: whether there are as many nodes as when the checkpoint was saved.

    Returns:
        True if what was in flight is merged. If not, the state must name no exchange.

    Raises:
        CheckpointError: on all ranks; no optimizer here has such exchanges, or files are damaged.
    """
    if not first.flights or session.num_nodes == 1 or session.simulated:
        return same
    # All of them before any is compared: this opens channels, in which all ranks take part.
    held = [held_by(session, x.optimizer, x.fragment) for x in first.flights]
    targets, merges, saves = {}, same, [_saves(first, common=True)]
    with together(session, _WHAT):
        ranks = first.ranks_per_node
        for rank in range(node * ranks, (node + 1) * ranks):
            saves.append(_saves(part_of(folder, rank, first), common=False))
        for number in range(len(first.flights)):
            if same or "anchor" in _kinds(saves, number):
                targets[number] = _fitting(first, number, held[number])
        for number, target in targets.items() if same else ():
            merges &= _can_merge(first, saves, number, target)
    merges = all(session.all_ranks.everyone(_WHAT, "yes" if merges else ""))
    lost = {} if same else _lost_steps(session, folder, first, targets)
    with together(session, _WHAT):
        for number, target in targets.items():
            if merges or target.versions.anchored:
                of_outer = lost.get(number, {})
                _adopt(folder, first, saves, number, target, of_outer, same=same, merges=merges)
    if same and not merges:
        log.warning(
            "The checkpoint of step %d has fragments in flight that are cut in another way here: "
            "what was in flight is dropped.",
            first.step,
        )
    return merges


def _fitting(first: Manifest, number: int, held: Sequence[tuple[str, Held]]) -> Held:
    """Returns what continues an exchange here.

    Raises:
        CheckpointError: nothing does.
    """
    flight = first.flights[number]
    for mine, found in held:
        if mine == flight.meaning:
            return found
    here = "; ".join(mine for mine, _ in held) or "none"
    raise CheckpointError(
        f"The checkpoint of step {first.step} has an exchange of optimizer "
        f"{flight.optimizer}, fragment {flight.fragment}, that no optimizer here could have "
        f"started: {flight.meaning} (here: {here}). Make the optimizers as "
        "in the run that saved it."
    )


def _can_merge(first: Manifest, saves: Sequence[Saves], number: int, target: Held) -> bool:
    """Returns whether an exchange in flight has all numbers that its merge needs.

    A rule that keeps all progress adds a change, which may be 0; others move to a target.
    """
    if not first.flights[number].in_flight or target.versions.rule.keeps_progress:
        return True
    rooms = _Rooms(target)
    found = 0
    for each in saves:
        found += sum(x.common for _, x in rooms.wanted(first, each, number, ["numbers"]))
    return found >= rooms.size


def _adopt(
    folder: Path,
    first: Manifest,
    saves: Sequence[Saves],
    number: int,
    target: Held,
    lost: Mapping[str, np.ndarray],
    *,
    same: bool,
    merges: bool,
) -> None:
    """Reads what a fragment's exchange needs, and gives it to the host.

    The common point goes back by the outer step that is `lost`, by leaf.
    """
    flight = first.flights[number]
    versions, rooms = target.versions, _Rooms(target)
    kinds = [kind for kind in _kinds(saves, number) if same or kind.startswith(COMMON)]
    if same and flight.in_flight and not merges:  # its rounding error is dropped with it
        kinds = [kind for kind in kinds if kind.startswith(COMMON)]
    counts = dict.fromkeys(kinds, 0)
    for each in saves:
        pairs = list(rooms.wanted(first, each, number, kinds))
        copied = read_overlaps(folder, each.manifest, [wanted for _, wanted in pairs])
        for (kind, _), count in zip(pairs, copied, strict=True):
            counts[kind] += count
    for kind, count in counts.items():
        if kind.startswith(COMMON) and count < rooms.size:
            raise DamagedError(
                f"{folder}: only {count} of {rooms.size} numbers of optimizer {flight.optimizer}'s "
                f"{kind} are there."
            )
    others = _others(folder, saves, number, target, rooms)
    if not same:
        others = {name: x for name, x in others.items() if name.startswith("outer")}
        rooms.subtract("anchor", lost)
    saved = Saved({kind: rooms.numbers(kind) for kind in kinds}, others)
    try:
        about = flight.ticket, flight.optimizer, flight.model
        versions.adopt(*about, saved, in_flight=flight.in_flight and merges)
    except (ValueError, KeyError) as error:
        raise DamagedError(
            f"{folder}: an exchange of optimizer {flight.optimizer} does not have the size of its "
            f"layout ({error})."
        ) from error
    except NodeError as error:
        raise CheckpointError(str(error)) from error


def _lost_steps(
    session: Session, folder: Path, first: Manifest, targets: Mapping[int, Held]
) -> dict[int, dict[str, np.ndarray]]:
    """The outer steps in flight that another number of nodes drops, by exchange and leaf.

    The restored parameters are the mean of the old nodes', and lie at the mean of their snapshots.
    The saved common point is one outer step ahead. Node 0 reads, and sends to all.
    """
    found: dict[int, dict[str, np.ndarray]] = {}
    for number, target in targets.items():
        if not (first.flights[number].in_flight and target.versions.rule.needs_anchor):
            continue
        with together(session, _WHAT):
            read = _mean_change(folder, first, number, target) if session.node == 0 else {}
        sizes = {path: rows.size for path, rows in _Rooms(target).leaves.items()}
        rooms = {path: read.get(path, np.zeros(size)) for path, size in sizes.items()}
        found[number] = {path: session.control.broadcast(room) for path, room in rooms.items()}
    return found


def _mean_change(folder: Path, first: Manifest, number: int, target: Held) -> dict[str, np.ndarray]:
    """The mean over the old nodes of what their exchange in flight adds, by leaf; float64."""
    total: dict[str, np.ndarray] = {}
    ranks = first.ranks_per_node
    for node in range(first.num_nodes):
        rooms = _Rooms(target)
        for rank in range(node * ranks, (node + 1) * ranks):
            each = _saves(part_of(folder, rank, first), common=False)
            pairs = rooms.wanted(first, each, number, ["numbers"])
            read_overlaps(folder, each.manifest, [wanted for _, wanted in list(pairs)])
        for path, array in rooms.arrays("numbers").items():
            total[path] = total.get(path, 0) + array.astype(np.float64)
    return {path: array / first.num_nodes for path, array in total.items()}


class _Rooms:
    """Room for the numbers that this rank holds of an exchange.

    Args:
        target: the exchange, as it is here.
    """

    def __init__(self, target: Held):
        self._sizes = [span.size for span in target.spans]
        self.leaves: dict[str, SavedRows] = by_leaf(target.spans)
        self.size = sum(self._sizes)
        self._numbers: dict[str, dict[str, np.ndarray]] = {}

    def wanted(
        self, first: Manifest, saves: Saves, number: int, kinds: Sequence[str]
    ) -> Iterator[tuple[str, Wanted]]:
        """Yields (kind, wanted pieces) of the arrays that one rank has saved."""
        sources = _sources(first, number)
        in_flight = first.flights[number].in_flight
        for source, kind, path, leaf in saves.arrays:
            if source not in sources or kind not in kinds or path not in self.leaves:
                continue
            # Error feedback applies after the merge.
            if first.flights[source].in_flight and not in_flight and kind in ("error", "paid"):
                continue
            if self.leaves[path].whole == leaf.whole:
                yield kind, Wanted(leaf, self._pieces(kind, path, leaf))

    def are_those_of(self, saves: Saves, number: int) -> bool:
        """Returns whether a rank had the same numbers of the same leaves."""
        mine = {path: rows[:3] for path, rows in self.leaves.items()}
        leaves = {x.path: x.leaf for x in saves.arrays if (x.number, x.kind) == (number, "anchor")}
        return mine == {path: (x.whole, x.begins, x.shapes) for path, x in leaves.items()}

    def _pieces(self, kind: str, path: str, leaf: SavedLeaf) -> list[SavedPiece]:
        """The pieces of one leaf, zeros at first."""
        rows, arrays = self.leaves[path], self._numbers.setdefault(kind, {})
        if path not in arrays:
            arrays[path] = np.zeros(rows.size, leaf.dtype)
        return list(pieces_in(arrays[path], rows.begins, rows.shapes))

    def arrays(self, kind: str) -> dict[str, np.ndarray]:
        """The numbers of one kind, by leaf."""
        return self._numbers.get(kind, {})

    def subtract(self, kind: str, change: Mapping[str, np.ndarray]) -> None:
        """Subtracts numbers, by leaf, from those of one kind."""
        for path, array in self.arrays(kind).items():
            if path in change:
                array[:] = array - change[path]

    def numbers(self, kind: str) -> list[np.ndarray]:
        """The numbers of one kind, span by span."""
        found = [np.zeros(size, np.float32) for size in self._sizes]
        for path, array in self.arrays(kind).items():
            at = 0
            for n, size in self.leaves[path].spans:
                found[n] = array[at : at + size]
                at += size
        return found


def _sources(first: Manifest, number: int) -> list[int]:
    """The exchanges of the same optimizer and parameters; of each other fragment the last one."""
    flight = first.flights[number]
    alike = (flight.optimizer, flight.model, flight.meaning)
    found = {
        other.fragment: k
        for k, other in enumerate(first.flights)
        if (other.optimizer, other.model, other.meaning) == alike
    }
    return list((found | {flight.fragment: number}).values())


def _kinds(saves: Sequence[Saves], number: int) -> list[str]:
    """The kinds of numbers that were saved of an exchange."""
    return list(dict.fromkeys(x.kind for each in saves for x in each.arrays if x.number == number))


def _others(
    folder: Path, saves: Sequence[Saves], number: int, target: Held, rooms: _Rooms
) -> dict[str, np.ndarray]:
    """Reads what does not belong to leaves, from the rank that had what this one has.

    Raises:
        CheckpointError: there is no such rank, and an outer optimizer needs these arrays.
    """
    alike = [each for each in saves if rooms.are_those_of(each, number)]
    if not (alike or target.versions.outer_form.moves):
        raise CheckpointError(
            "The outer optimizer keeps arrays that are not like the parameters, and the checkpoint "
            "was saved with these divided over devices in another way. Restore it on the layout "
            "that it was saved on."
        )
    found: dict[str, np.ndarray] = {}
    for manifest, _, others in (*alike, *saves):
        mine = [x for x in others if x.number == number and x.kind not in found]
        for common in (True, False):
            of_part = [leaf for leaf in manifest.leaves if leaf.common == common]
            wanted = [x.leaf for x in mine if x.leaf.common == common]
            if wanted:
                name = COMMON_FOLDER if common else node_folder(manifest.node)
                manifest.verify(folder, (name,), wanted)
                arrays = read_arrays(folder, name, of_part, wanted, manifest.small)
                found |= {x.kind: arrays[x.leaf.file] for x in mine if x.leaf.file in arrays}
    return found


def _saves(manifest: Manifest, *, common: bool) -> Saves:
    """The arrays of exchanges in a manifest; rank 0 saves those that all nodes have in common."""
    arrays, others = [], []
    for leaf in manifest.leaves:
        if is_flight(leaf) and leaf.common == common:
            number, kind, *_ = leaf.file.removeprefix("exchange").split(".")
            found = arrays if leaf.whole is not None else others
            found.append(SavedArray(int(number), kind, leaf.path.partition(">")[2], leaf))
    return Saves(manifest, tuple(arrays), tuple(others))
