"""Versions: the numbers of a channel's late exchanges, held on the host.

A start copies the parameters to the host, once. All else happens behind the step, in the channel's
threads and in float32: the difference to the common point, error feedback, encoding; after the
exchange the target of the merge rule, and the change that the step will add.

The optimizer's state names a version by its ticket. The host makes version t from the version that
the state held before, and keeps two: a step that is computed and discarded makes version t again
from the same numbers, with the same bits. A version that is gone is an error. So is one of another
model: an optimizer whose `init` was called again keeps the versions of the last model only.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence

import jax
import numpy as np

from .._jax.ffi import library
from .._jax.ffi.on_device import OnDevice
from .._jax.types import Leaves as Arrays
from .._jax.types import PyTree
from .._payload.checksums import checksum_on_host
from .._payload.whole import Whole
from .._payload.wire import WIRES
from .._payload.words import BAD_LEAF, FAILED, HEADER, STATUS, facts_of
from .._rules.merge import Merge
from .channel import Channel
from .in_flight import InFlight, Numbers
from .making import Making
from .passes import owed_on_host
from .programs import Programs
from .saved import Saved
from .staging import Leaves, Places
from .version import Version, joined

log = logging.getLogger("jdaso")


class Versions:
    """The versions of one channel's late exchanges, under one merge rule.

    Args:
        channel: sends them.
        rule: merges them.
        dress: gives float32 leaves the structure of the parameters, as the rule sees them.
        checks: whether checksums of replicated numbers travel in the headers.
        node: this node's number.
        whole: the leaves whose shards the channel sends, if they are divided over devices.
    """

    def __init__(
        self,
        channel: Channel,
        rule: Merge,
        dress: Callable[[Arrays], PyTree],
        *,
        checks: bool,
        node: int,
        whole: Whole | None = None,
    ):
        self._channel, self.rule, self._checks = channel, rule, checks
        self.layout, self.wire, self._node = channel.layout, channel.wire, np.int32(node)
        self.anchored = channel.wire.narrow or rule.needs_anchor
        self._programs = Programs(channel.layout, channel.wire, rule, dress, whole)
        first: Versions | None = next(iter(channel.versions.values()), None)
        if first is None:
            self._lock = threading.Lock()
            self._places = Places(channel.layout, WIRES["float32"], library.host_memory)
        else:  # all of a channel may need each other's versions
            self._lock, self._places = first._lock, first._places
        self.leaves = Leaves(channel.layout)
        self._known: dict[int, list[Version]] = {}  # by optimizer, the last two
        self.anchor_shapes = self._programs.anchor_shapes
        self.outer_shapes = self._programs.outer_shapes
        if jax.tree.leaves(self.outer_shapes) and not rule.needs_anchor:
            raise ValueError(
                f"The merge rule {rule.name!r} has state of its own (`init`) and "
                "needs_anchor=False. The host keeps such state with the anchor: set "
                "needs_anchor=True."
            )
        self.outer_form = self._programs.outer_form
        self._warned: set[int] = set()
        self._skips = 0

    def begin(self, arrays: Sequence[np.ndarray | OnDevice], owner: int, model: int) -> None:
        """Takes the common point before the first exchange; the same on all nodes."""
        with self._lock:
            place = self._places.free()
            place.hold()  # from other optimizers that start meanwhile
        list(self.leaves.write(arrays, place))
        anchor = tuple(np.array(rows) for rows in place.rows)
        with self._lock:
            place.release()
        self._keep(Version(0, anchor=anchor, age=0, model=model), owner)

    def start(
        self,
        ticket: int,
        arrays: Sequence[np.ndarray | OnDevice],
        head: np.ndarray,
        *,
        before: int,
        weight: np.float32 | None,
        owner: int,
        model: int,
        device: int,
    ) -> None:
        """Starts an exchange of the parameters.

        Args:
            ticket: names the new version.
            arrays: the leaves, each in its own dtype.
            head: this node's header.
            before: the ticket of the version that the state held; 0 before the first.
            weight: the weight to send with.
            owner: the optimizer.
            model: the model.
            device: the local device that calls.

        On failure: waiting for the ticket returns the error.
        """

        def begin(flight: InFlight) -> Numbers:
            self._warn_if_started_again(ticket, owner, model)
            version = Version(ticket, weight=weight, flight=flight, model=model)
            if self.anchored:
                version.before = self._find(before, owner, model)
                if version.before is None or version.before.age is None:
                    flight.goes_on = True
                    flight.error = self._channel.lost_version(before, flight.step)
            self._keep(version, owner)
            about = self.wire, self.rule, self._programs, self.leaves, self._node
            return Making(version, arrays, *about, self.anchored, self._checks)

        self._channel.start(ticket, head, begin, owner=owner, device=device)

    def _warn_if_started_again(self, ticket: int, owner: int, model: int) -> None:
        """Logs once that an exchange is started again before it was merged.

        A step may run again with an older state. Two models whose `init` was compiled once have the
        same number; trained in turns, each merges the other's numbers, which nothing else shows.
        """
        earlier = self._find(ticket, owner, model)
        if earlier is None or earlier.flight is None or earlier.age is not None:
            return
        if owner not in self._warned:
            self._warned.add(owner)
            log.warning(
                "The exchange of step %d is started again, before it was merged. With "
                "optax.MultiSteps around daso this is right. But if one daso trains several models "
                "whose init was compiled by jax.jit, each merges the other's numbers: make a daso "
                'for each, as in daso(..., name="second").',
                ticket - 1,
            )

    def correction(
        self, ticket: int, age: int, *, owner: int, model: int, device: int
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Waits for an exchange; returns the headers, and for each leaf the change, float32.

        Args:
            ticket: the version.
            age: steps since its start.
            owner: the optimizer that waits.
            model: its model.
            device: the local device that waits.

        On failure: as `Channel.wait`.
        """
        heads = self._channel.wait(ticket, device, owner=owner)
        version = self._find(ticket, owner, model)
        if (heads[:, STATUS] == FAILED).any():
            return heads, self.leaves.read(self._nothing())
        if version is None or version.numbers is None:
            return self._lost_heads(ticket), self.leaves.read(self._nothing())
        version.age = age
        self._channel.note_merged(ticket)
        return heads, self.leaves.read(version.numbers.whole)

    def feedback(self, ticket: int, owner: int, model: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """The error feedback that no exchange has taken in yet, by leaf, float32.

        Returns:
            Headers, of which only the status counts; the leaves.
        """
        heads, owed = np.zeros((self.layout.nodes, HEADER), np.int32), None
        if ticket != 0:
            version = self._find(ticket, owner, model)
            if version is None or version.age is None:
                heads = self._lost_heads(ticket)
            else:
                chunks = [version.owed(k, self.rule, self._node) for k in range(len(version.error))]
                found = [owed_on_host(x) for x in chunks if x is not None]
                owed = joined(found) if found else None
        return heads, self.leaves.read(self._nothing() if owed is None else owed)

    def _lost_heads(self, ticket: int) -> np.ndarray:
        """Headers that report a discarded version."""
        self._channel.refuse(self._channel.lost_version(ticket, ticket - 1))
        heads = np.zeros((self.layout.nodes, HEADER), np.int32)
        heads[:, STATUS] = FAILED
        return heads

    def count_skip(self) -> int:
        """Counts a merge that is skipped; returns the number of such merges."""
        self._skips += 1
        return self._skips

    def prints(self, ticket: int, owner: int) -> np.ndarray:
        """A checksum for each leaf of the common point, then for each of the rule's state."""
        if not self.anchored:
            return np.zeros(0, np.int32)
        version = self._find(ticket, owner) or Version(0)
        version = version.before or version  # checksums cover the one that it was made from
        anchor = joined(version.anchor) if version.anchor else self._nothing()
        outer = [np.zeros(x.shape, x.dtype) for x in jax.tree.leaves(self.outer_shapes)]
        if version.outer is not None:
            outer = map(np.asarray, jax.tree.leaves(version.outer))
        leaves = [*self.leaves.read(anchor), *outer]
        return np.array([checksum_on_host(x) for x in leaves if x.size], np.int32)

    def kept(self, ticket: int, owner: int, model: int, *, in_flight: bool) -> Version | None:
        """A version to save, whose numbers stay until `saved` or `release`; None if it is gone."""
        flight = self._channel.flight(ticket, owner)
        with self._lock:
            version = self._search(ticket, owner, model)
            if version is None or (
                flight is not version.flight if in_flight else version.age is None
            ):
                return None
            if version.numbers is not None:
                version.numbers.hold()
            return version

    def saved(self, version: Version, *, in_flight: bool) -> Saved:
        """Waits for a `kept` version's result and returns its arrays; any thread may call this.

        Raises:
            NodeError: the exchange failed.
        """
        try:
            if version.flight is not None:
                self._channel.finished(version.flight)
            found = Saved({}, {})
            if version.heads is not None:
                found.others["heads"] = version.heads
            if in_flight:
                assert version.numbers is not None
                found.by_leaf["numbers"] = self._cut(version.numbers.whole.copy())
            else:
                found.others["age"] = np.asarray(version.age, np.int32)
            if version.anchor:
                found.by_leaf["anchor"] = self._cut(joined(version.anchor))
            if version.outer is not None:
                copies, others = self.outer_form.taken(version.outer)
                found.by_leaf.update(copies)
                found.others.update(others)
            if version.error:
                found.by_leaf["error"] = self._cut(joined(version.lost(self._node)))
            if version.paid:
                found.by_leaf["paid"] = self._cut(joined(version.paid))
            return found
        finally:
            self.release(version)

    def release(self, version: Version) -> None:
        """Lets go of the numbers of a `kept` version."""
        with self._lock:
            if version.numbers is not None:
                version.numbers.release()

    def adopt(self, ticket: int, owner: int, model: int, saved: Saved, *, in_flight: bool) -> None:
        """Takes a version that an earlier run has saved, under its ticket.

        Raises:
            NodeError: an exchange that is still in flight failed.
            ValueError: an array does not have the size of the layout.
        """
        by_leaf, others = saved
        anchor = self._chunks(by_leaf["anchor"]) if "anchor" in by_leaf else ()
        version = Version(ticket, anchor=anchor, model=model)
        version.outer = self.outer_form.given(saved)
        if "error" in by_leaf:
            version.error = self._chunks(by_leaf["error"])
            version.residuals = tuple(None for _ in version.error)
        version.paid = self._chunks(by_leaf["paid"]) if "paid" in by_leaf else ()
        if "heads" in others:
            version.heads = np.array(others["heads"])
            of_layout = version.heads[:, BAD_LEAF]  # another layout may have had more leaves
            np.minimum(of_layout, len(self.layout.exchanged), out=of_layout)
            version.facts = facts_of(version.heads)
        version.age = None if in_flight else int(others.get("age", 1))
        self._keep(version, owner)
        if in_flight:
            assert version.numbers is not None
            assert version.heads is not None
            self._fill(version.numbers.whole, by_leaf["numbers"])
            version.flight = self._channel.adopt(ticket, owner, version.heads)

    def _chunks(self, by_leaf: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Numbers by leaf, as chunks."""
        whole = self._nothing()
        self._fill(whole, by_leaf)
        ranges = self._places.all[0].ranges
        return tuple(whole[a:b].reshape(self.layout.nodes, -1) for a, b in ranges)

    def _fill(self, whole: np.ndarray, by_leaf: Sequence[np.ndarray]) -> None:
        """Puts numbers by leaf into a vector; pads with zeros where there are fewer."""
        for room, x in zip(self._cut(whole), by_leaf, strict=True):
            if x.size > room.size:
                raise ValueError(f"{x.size} numbers, expected {room.size}")
            room[: x.size], room[x.size :] = x, 0

    def _cut(self, whole: np.ndarray) -> list[np.ndarray]:
        """Flat views of the leaves in a vector."""
        return [x.reshape(-1) for x in self.leaves.read(whole)]

    def _find(self, ticket: int, owner: int, model: int | None = None) -> Version | None:
        """The version that a state names.

        An optimizer that was made anew may go on with a version that another has made.
        """
        with self._lock:
            return self._search(ticket, owner, model)

    def _search(self, ticket: int, owner: int, model: int | None) -> Version | None:
        """See `_find`; the lock is held."""
        known = list(reversed(self._known.get(owner, [])))
        if model is not None or not known:
            known += itertools.chain(*(y for x in self._alike() for y in x._known.values()))
        of_model = (x for x in known if model is None or x.model == model)
        return next((x for x in of_model if x.ticket == ticket), None)

    def _alike(self) -> list[Versions]:
        """The versions of this channel whose numbers mean the same under this rule."""
        others = list(self._channel.versions.values())
        return [self, *(x for x in others if x is not self and self._goes_on_from(x))]

    def _goes_on_from(self, other: Versions) -> bool:
        """Returns whether the numbers of other versions mean the same under this rule."""
        same = jax.tree.structure(self.outer_shapes) == jax.tree.structure(other.outer_shapes)
        return same and self.rule.name == other.rule.name

    def _keep(self, version: Version, owner: int) -> None:
        """Keeps a version and the one that it was made from (or the last one), and no other."""
        with self._lock:
            known = self._taken_over(owner, version.model)
            earlier = [x for x in known if x.ticket != version.ticket and x.model == version.model]
            before = version.before or next(reversed(earlier), None)
            if (base := version.before) is not None:
                base.before = None  # no chain of versions
            kept = [version] if before is None else [before, version]
            for old in known:
                if old not in kept and old.numbers is not None:
                    old.numbers.release()
            if before is not None and before not in known and before.numbers is not None:
                before.numbers.hold()
            if version.ticket != 0 and version.numbers is None:
                place = version.numbers = self._places.free()
                place.hold()
            self._known[owner] = kept

    def _taken_over(self, owner: int, model: int) -> list[Version]:
        """Removes and returns the versions of an optimizer, and of others for the same model.

        `optax.inject_hyperparams` makes an optimizer anew for each program that it compiles, and
        the programs take turns. If it makes the merge rule too, they have versions of their own.
        """
        mine, found = self._known.pop(owner, []), list[Version]()
        for known in (x._known for x in self._alike()):
            others = [x for x, some in known.items() if some[-1].model == model]
            found += itertools.chain(*map(known.pop, others))
        return [*found, *mine]

    def _nothing(self) -> np.ndarray:
        return np.zeros(self._places.all[0].whole.size, np.float32)
