"""Exchanges of leaves that are divided over a node's devices, each of which calls the host.

    device 0: shards of device 0 --+
    device 1: shards of device 1 --+--> the last one to arrive makes the call for all of them
    ...                            |
    device L: shards of device L --+

The leaves of the layout are the different shards. If several devices hold copies, the host takes
one; in a node of several ranks each device gives a part of its copy (`SharedCopies`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._base.errors import NodeError
from .._engines.meeting import Meeting
from .._jax.types import Leaves, PyTree, ShapeDtype
from .._payload.layout import Division
from .._payload.placement import Placement, spec
from .._payload.shards import Part, Shards, parts_of
from .exchange import Exchange
from .host import HostExchange
from .received import Received
from .replicated import Common
from .shared_copies import SharedCopies

_LIMIT_SECONDS = 600.0
"""Limit of a device that waits for the others of its node, if the session has none."""

_NONE = np.int32(np.iinfo(np.int32).max)
"""Stands for no leaf."""

_CHECKED_CALLS = 2
"""The number of first calls in which the devices' copies are compared."""


class ShardedExchange(HostExchange):
    """Exchanges of a tree whose leaves are divided over the node's devices; see `Exchange`.

    Also of any tree in a node of several ranks, whose devices share the work; see `Part`.
    """

    placement: Placement

    @cached_property
    def _parts(self) -> tuple[Part, ...]:
        """The parts of the leaves that devices exchange; empty if each exchanges its shards."""
        return parts_of(self.placement, self.leaves) if self.session.joined else ()

    @cached_property
    def _copies(self) -> SharedCopies:
        return SharedCopies(self.placement, self._parts, compares=self._may_differ)

    @property
    def _may_differ(self) -> bool:
        """True if devices may hold different copies of a leaf, and should not."""
        return self.placement.mesh is None and self.copies_alike

    @cached_property
    def _shards(self) -> Shards:
        divisions = [part.division for part in self._parts] or self.placement.divisions
        return Shards(self.placement.of(divisions))

    def ask_node(self) -> jax.Array:
        """Like `HostExchange.ask_node`, by all devices if several hosts drive them."""
        if not self.session.joined:
            return super().ask_node()
        return self.placement.inside(super().ask_node, (), spec(()))()

    def whole_shards(self, leaves: Sequence[int]) -> list[int]:
        """See `HostExchange.whole_shards`."""
        return [k for k in leaves for _ in range(self._shards.counts[k])]

    def counts(self, divisions: Sequence[Division], arrays: int) -> list[int]:
        """See `HostExchange.counts`."""
        return Shards(self.placement.of(divisions or [()] * arrays)).counts

    def gather(
        self,
        function: Callable[..., Any],
        shape: ShapeDtype,
        arrays: Sequence[Any],
        divisions: Sequence[Division],
    ) -> jax.Array:
        """Like `HostExchange.gather`, by all devices; the sum over ranks in a node of several.

        Inside `jax.shard_map` copies of a shard may differ: then the result is one that no other
        node has.
        """
        given = [*divisions] or [()] * len(arrays)
        shards, node = Shards(self.placement.of(given)), self.session.node

        def checked(by_device: Sequence[Sequence[Any]]) -> Any:
            found = np.asarray(function(*shards.gathered(by_device)))
            if self.placement.mesh is not None:
                return found
            alike = np.array(shards.alike(by_device), bool)
            return np.where(alike if found.ndim else alike.all(), found, found + 1 + node)

        if not self.session.joined:
            return self._together(checked, shape, [()], arrays, given)
        names = self.placement.names
        total = lambda mine: jax.lax.psum(mine, names)  # noqa: E731
        return self._together(checked, shape, [()], arrays, given, of_first=True, after=total)

    @property
    def paths(self) -> tuple[str, ...]:
        """See `Exchange.paths`; parts of a leaf have its path."""
        if not self._parts:
            return super().paths
        return tuple(self.leaves[k].path for k in self.whole_shards(range(len(self.leaves))))

    def first_bad(self, leaves: Leaves) -> jax.Array:
        """Like `Exchange.first_bad`, of any device."""
        bad = super().first_bad(leaves)
        if self.placement.mesh is None:  # here each device has its own numbers
            found = jnp.where(bad > 0, bad, _NONE)
            bad = jax.lax.pmin(found, self.placement.names)
            bad = jnp.where(bad == _NONE, 0, bad)
        places = jnp.asarray([0, *(1 + k for k in self._shards.first[: len(leaves)])], jnp.int32)
        return places[bad]

    def mean_of_finite(
        self, leaves: Leaves, count: int, head: jax.Array, step: jax.Array, common: Common | None
    ) -> Received:
        """See `Exchange.mean_of_finite`; in a node of several ranks each host has parts only."""
        if not self.session.joined:
            return super().mean_of_finite(leaves, count, head, step, common)
        return Exchange.mean_of_finite(self, leaves, count, head, step, common)

    def send(
        self, function: Callable[..., Any], turn: Any, about: Sequence[Any], leaves: Leaves
    ) -> jax.Array:
        """Like `HostExchange.send`, by all devices."""
        del turn
        given = [()] * len(about) + [*self.placement.divisions]
        taken = self._copies.taken(given, len(about))
        shape = ShapeDtype((), jnp.int32)
        checked = self._check_copies(taken, len(about))

        def call(by_device: Sequence[Sequence[Any]]) -> Any:
            try:
                checked(by_device)
            except NodeError as error:
                self.session.control.note_broken(error)  # the wait for this start raises it
                return by_device[0][0] if about else np.zeros((), np.int32)
            return function(*taken.gathered(by_device))

        before = self._copies.cut(len(about))
        return self._together(call, shape, [()], (*about, *leaves), given, before=before)

    def fetch(
        self,
        function: Callable[..., Any],
        sets: int,
        turn: Any,
        about: Sequence[Any],
        leaves: Leaves = (),
    ) -> Any:
        """Like `HostExchange.fetch`, by all devices; a failure of one rank is one of its node."""
        del turn
        divisions = [*self.placement.divisions]
        places = {}
        if leaves:
            places = {1 + len(about) + k: 1 + k for k in range(len(divisions))}
        given = [()] * len(about) + divisions * (len(leaves) // max(len(divisions), 1))
        first = self._shards.first
        shapes = self._shapes(sets, [self.layout.exchanged[k].reals for k in first])
        taken = self._copies.taken(given, len(about))
        checked = self._check_copies(taken, len(about))

        def all_shards(by_device: Sequence[Sequence[Any]]) -> Any:
            checked(by_device)
            return function(*taken.gathered(by_device))

        call = self._refusing(all_shards, sets)
        gives = [(), *(divisions * sets)]
        ways = {
            "places": places,
            "before": self._copies.cut(len(about)),
            "after": self._copies.join,
        }
        return self._together(call, shapes, gives, (*about, *leaves), given, **ways)

    def _check_copies(self, given: Shards, first: int) -> Callable[[Sequence[Sequence[Any]]], None]:
        """A function that raises if devices hold different copies of a leaf.

        That happens only inside `jax.shard_map`, for a reason in the program, so the first calls
        show it. The devices of several ranks compare theirs themselves, see `SharedCopies`.

        Args:
            given: the shards of the arguments.
            first: the number of the first leaf among these.
        """
        calls = itertools.count()

        def check(by_device: Sequence[Sequence[Any]]) -> None:
            if not self._may_differ:
                return
            if self._parts:
                odd = [x for x, here in enumerate(by_device[0][-1]) if here]
            elif next(calls) < _CHECKED_CALLS:
                alike = given.alike(by_device)[first:]
                odd = [k % len(self.leaves) for k, same in enumerate(alike) if not same]
            else:
                return
            if odd:
                path = self.leaves[odd[0]].path
                raise self.session.control.error(
                    f"Devices of this node hold different copies of leaf {path} ({len(odd)} of "
                    f"{len(self.leaves)} leaves). Devices along an axis that "
                    "sharded= leaves out for a parameter must make the same updates of it: average "
                    "its gradients over that axis (jax.lax.pmean, or local_axis)."
                )

        return check

    def _together(
        self,
        function: Callable[..., Any],
        shapes: PyTree,
        gives: Sequence[Division],
        args: Sequence[Any],
        given: Sequence[Division],
        *,
        places: Mapping[int, int] | None = None,
        of_first: bool = False,
        before: Callable[..., Sequence[Any]] = lambda *mine: mine,
        after: Callable[[Any], Any] = lambda found: found,
    ) -> Any:
        """Calls the host from all devices.

        Args:
            function: takes each device's arguments, returns all shards of the results.
            shapes: of each device's results.
            gives: divisions of the results.
            args: the arguments.
            given: their divisions.
            places: see `host_call`; the first argument is the device's number.
            of_first: whether all devices but the first of this rank are given zeros.
            before: a device's function of its arguments, before the call.
            after: a device's function of its results.
        """
        placement, session = self.placement, self.session
        sets = (len(gives) - 1) // max(len(self.leaves), 1)
        dealt = Shards(placement.of([()], *[self._shards.placement.divisions] * sets))
        structure = jax.tree.structure(shapes)
        limit = session.timeout_seconds or _LIMIT_SECONDS
        meeting = Meeting(placement.here, limit)

        def of_all(by_device: Sequence[Sequence[Any]]) -> list[list[Any]]:
            found = jax.tree.leaves(function(by_device))
            shared = dealt.dealt(found)
            if of_first:
                shared[1:] = [[np.zeros_like(x) for x in mine] for mine in shared[1:]]
            return shared

        def together(device: Any, *mine: Any) -> list[Any]:
            return meeting.call(int(device), tuple(map(np.asarray, mine)), of_all)

        def call(*mine: Any) -> Any:
            about = placement.device(), *before(*mine)
            return after(self.call(together, shapes, *about, places=places))

        specs = jax.tree.unflatten(structure, list(map(spec, gives)))
        return placement.inside(call, given, specs)(*args)
