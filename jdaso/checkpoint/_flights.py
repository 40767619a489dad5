"""Exchanges in flight as they are saved: the numbers that the host holds, leaf by leaf.

A rank saves what it has, and with each array the place of its numbers in the leaf; see `SavedLeaf`.
`_resumed` finds them there for any other layout.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .._engines.saved import COMMON, Saved
from .._engines.version import Version
from .._engines.versions import Versions
from .._jax.types import PyTree
from .._payload.layout import Leaf as Exchanged
from .._payload.spans import Span
from .._session import Held, Session
from ._files import CheckpointError, SavedFlight, SavedLeaf
from ._state import dasos_in


class Kept(NamedTuple):
    """Numbers of a fragment's late exchange that the host holds; a save waits for the result."""

    saved: SavedFlight
    held: Held
    version: Version


class SavedRows(NamedTuple):
    """The numbers of one leaf of the parameters in an exchange of this rank.

    Attributes:
        whole: the leaf's shape, in float32 numbers.
        begins: where the boxes of its numbers begin.
        shapes: the shapes of the boxes.
        spans: the numbers of the spans that have them, with their sizes.
    """

    whole: tuple[int, ...]
    begins: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    spans: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """The number of numbers."""
        return sum(size for _, size in self.spans)


def keep_flights(state: PyTree, session: Session) -> list[Kept]:
    """Returns what the host holds of a state's late exchanges.

    Raises:
        CheckpointError: this session did not start one of them.
    """
    found: list[Kept] = []
    if session.simulated or session.num_nodes == 1:  # there the state itself holds it
        return found
    try:
        for kept in _each_kept(state, session, found):
            found.append(kept)
    except BaseException:
        release(found)
        raise
    return found


def _each_kept(state: PyTree, session: Session, found: Sequence[Kept]) -> Iterator[Kept]:
    """Yields what `keep_flights` returns; `found` has those before."""
    for flight in flights_of(state):
        about = flight.optimizer, flight.model
        for meaning, held in held_by(session, flight.optimizer, flight.fragment):
            versions = held.versions
            begun = flight.ticket or versions.kept(0, *about, in_flight=False)
            if not (flight.in_flight or (versions.anchored and begun)):
                break
            same = [x for x in found if x.held.versions is versions]
            if any(x.saved.ticket == flight.ticket for x in same):
                continue
            version = versions.kept(flight.ticket, *about, in_flight=flight.in_flight)
            if version is not None:
                yield Kept(flight._replace(meaning=meaning), held, version)
                break
        else:
            raise CheckpointError(
                f"The state goes on from an exchange (ticket {flight.ticket}) that this session "
                "did not start. Save the state that the last update returned."
            )


def release(flights: Sequence[Kept]) -> None:
    """Gives up what `keep_flights` has found, unless `flight_arrays` has taken it."""
    for kept in flights:
        kept.held.versions.release(kept.version)


def flight_arrays(number: int, kept: Kept, *, shares: bool) -> list[tuple[SavedLeaf, np.ndarray]]:
    """Returns what `keep_flights` has found, as arrays to save.

    Args:
        number: of the exchange in the manifest.
        kept: the exchange.
        shares: whether node 0 saves for all nodes what they have in common.
    """
    saved = kept.held.versions.saved(kept.version, in_flight=kept.saved.in_flight)
    return arrays_of(number, saved, kept.held.spans, shares=shares)


def arrays_of(
    number: int, saved: Saved, spans: Sequence[Span], *, shares: bool
) -> list[tuple[SavedLeaf, np.ndarray]]:
    """Returns a saved version as arrays for a checkpoint, one for each leaf of the parameters."""
    found = []
    for name, array in saved.others.items():
        file, common = f"exchange{number}.{name}", shares and name.startswith(COMMON)
        found.append((SavedLeaf(f"<{file}>", file, str(array.dtype), array.shape, common), array))
    leaves = by_leaf(spans)
    for kind, mine in saved.by_leaf.items():
        common = shares and kind.startswith(COMMON)
        for k, (path, rows) in enumerate(leaves.items()):
            array = np.concatenate([mine[n][:size] for n, size in rows.spans])
            leaf = SavedLeaf(
                f"<exchange{number}.{kind}>{path}",
                f"exchange{number}.{kind}.{k}",
                str(array.dtype),
                array.shape,
                common,
                whole=rows.whole,
                begins=rows.begins,
                shapes=rows.shapes,
            )
            found.append((leaf, array))
    return found


def by_leaf(spans: Sequence[Span]) -> dict[str, SavedRows]:
    """Returns the numbers of an exchange, by the path of the leaf that they belong to."""
    found: dict[str, SavedRows] = {}
    for n, (path, whole, boxes) in enumerate(spans):
        _, begins, shapes, before = found.get(path, SavedRows(whole, (), (), ()))
        begins += tuple(box.begin for box in boxes)
        shapes += tuple(box.shape for box in boxes)
        found[path] = SavedRows(whole, begins, shapes, (*before, (n, spans[n].size)))
    return found


def held_by(session: Session, owner: int, fragment: int) -> list[tuple[str, Held]]:
    """Returns what the host holds of a fragment of one optimizer, with its meaning.

    There are several if the optimizer has several trees of parameters. If there is no optimizer of
    that number, all others are meant: `optax.inject_hyperparams` makes one for each program. All
    nodes call this together.
    """
    own = session.optimizers.completions_of(owner) or session.optimizers.completions_of(None)
    found = [(leaves, dict(enumerate(done.held()))) for leaves, done in own]
    return [
        (meaning_of(of_one[fragment].versions, leaves), of_one[fragment])
        for leaves, of_one in found
        if fragment in of_one
    ]


def meaning_of(versions: Versions, leaves: Sequence[Exchanged]) -> str:
    """Returns a text that differs if numbers of one exchange have no place in another.

    Args:
        versions: the numbers.
        leaves: the parameters.
    """
    mine = [f"{leaf.path} {leaf}" for leaf in leaves if leaf.exchanged]
    bits = zlib.crc32("\n".join(mine).encode())
    return f"{versions.wire.name}, {versions.rule.name}, {len(mine)} leaves, CRC {bits:08x}"


def flights_of(state: PyTree) -> list[SavedFlight]:
    """Returns the last exchange of each fragment, with ticket 0 for none, and without a meaning."""
    found = []
    for daso in dasos_in(state):
        optimizer, fragments = int(np.max(np.asarray(daso.optimizer))), np.shape(daso.ticket)[-1]
        pairs = (np.asarray(x).reshape(-1, fragments).max(0) for x in (daso.started, daso.ticket))
        for f, (started, ticket) in enumerate(zip(*pairs, strict=True)):
            model = int(np.max(np.asarray(daso.held[f])))
            found.append(SavedFlight(optimizer, model, f, int(started) + 1, bool(ticket), ""))
    return found
