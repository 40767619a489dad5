"""Exchanges of leaves that are divided over a node's devices, each of which calls the host.

    device 0: shards of device 0 --+
    device 1: shards of device 1 --+--> the last one to come makes the call for all of them
    ...                            |
    device L: shards of device L --+

The leaves of the layout are the different shards. Of what several devices hold, the host takes one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engines.meeting import Meeting
from .._errors import NodeError
from .._payload.layout import Division
from .._payload.placement import Placement, spec
from .._payload.shards import Shards
from .._types import Leaves, PyTree, ShapeDtype
from .host import HostExchange

_LIMIT_SECONDS = 600.0
"""Limit of a device that waits for the others of its node, if the session has none."""

_CHECKED_CALLS = 2
"""Calls in which the copies that devices hold are compared."""


class ShardedExchange(HostExchange):
    """Exchanges of a tree whose leaves are divided over the node's devices; see `Exchange`."""

    placement: Placement

    @cached_property
    def _shards(self) -> Shards:
        return Shards(self.placement)

    def whole_shards(self, leaves: Sequence[int]) -> list[int]:
        """As `HostExchange.whole_shards`."""
        return [k for k in leaves for _ in range(self._shards.counts[k])]

    def gather(
        self,
        function: Callable[..., Any],
        shape: ShapeDtype,
        arrays: Sequence[Any],
        divisions: Sequence[Division],
    ) -> jax.Array:
        """As `HostExchange.gather`, by all devices.

        Inside `jax.shard_map` copies of a shard may differ: then the result is one that no other
        node has.
        """
        given = Shards(self.placement.of(divisions or [()] * len(arrays)))
        node = self.session.node

        def checked(by_device: Sequence[Sequence[Any]]) -> Any:
            found = np.asarray(function(*given.gathered(by_device)))
            if self.placement.mesh is not None:
                return found
            alike = np.array(given.alike(by_device), bool)
            return np.where(alike if found.ndim else alike.all(), found, found + 1 + node)

        return self._together(checked, shape, [()], arrays, given)

    def send(
        self, function: Callable[..., Any], turn: Any, about: Sequence[Any], leaves: Leaves
    ) -> jax.Array:
        """As `HostExchange.send`, by all devices."""
        del turn
        given = [()] * len(about) + [*self.placement.divisions]
        taken = Shards(self.placement.of(given))
        shape = ShapeDtype((), jnp.int32)

        def call(by_device: Sequence[Sequence[Any]]) -> Any:
            try:
                checked(by_device)
            except NodeError as error:
                self.session.control.note_broken(error)  # the wait for this start raises it
                return by_device[0][0] if about else np.zeros((), np.int32)
            return function(*taken.gathered(by_device))

        checked = self._check_copies(taken, len(about))
        return self._together(call, shape, [()], (*about, *leaves), taken)

    def _check_copies(self, given: Shards, first: int) -> Callable[[Sequence[Sequence[Any]]], None]:
        """A function that raises if devices hold different copies of a leaf.

        That happens inside `jax.shard_map` only, and for a reason in the program: the first calls
        show it.

        Args:
            given: the shards of the arguments.
            first: the number of the first leaf among these.
        """
        calls = itertools.count()

        def check(by_device: Sequence[Sequence[Any]]) -> None:
            if self.placement.mesh is not None or next(calls) >= _CHECKED_CALLS:
                return
            alike = given.alike(by_device)[first:]
            apart = [k % len(self.leaves) for k, same in enumerate(alike) if not same]
            if apart:
                path = self.leaves[apart[0]].path
                raise self.session.control.error(
                    f"Devices of this node hold different copies of leaf {path} ({len(apart)} of "
                    f"{len(alike)} leaves). Devices along an axis that sharded= leaves out for a "
                    "parameter must make the same updates of it: average its gradients over that "
                    "axis (jax.lax.pmean, or local_axis)."
                )

        return check

    def fetch(
        self,
        function: Callable[..., Any],
        sets: int,
        turn: Any,
        about: Sequence[Any],
        leaves: Leaves = (),
    ) -> Any:
        """As `HostExchange.fetch`, by all devices."""
        del turn
        divisions = [*self.placement.divisions]
        places = {}
        if leaves:
            places = {1 + len(about) + k: 1 + k for k in range(len(divisions))}
        given = [()] * len(about) + divisions * (len(leaves) // len(divisions))
        first = self._shards.first
        shapes = self._shapes(sets, [self.layout.exchanged[k].reals for k in first])
        taken = Shards(self.placement.of(given))
        checked = self._check_copies(taken, len(about))

        def all_shards(by_device: Sequence[Sequence[Any]]) -> Any:
            checked(by_device)
            return function(*taken.gathered(by_device))

        call = self._refusing(all_shards, sets)
        gives = [(), *(divisions * sets)]
        return self._together(call, shapes, gives, (*about, *leaves), taken, places)

    def _together(
        self,
        function: Callable[..., Any],
        shapes: PyTree,
        gives: Sequence[Division],
        args: Sequence[Any],
        given: Shards,
        places: Mapping[int, int] | None = None,
    ) -> Any:
        """Calls the host from all devices.

        Args:
            function: takes each device's arguments, returns all shards of the results.
            shapes: of each device's results.
            gives: divisions of the results.
            args: the arguments.
            given: their shards.
            places: see `host_call`; the first argument is the device's number.
        """
        placement, session = self.placement, self.session
        dealt = Shards(placement.of(gives))
        limit = session.timeout_seconds or _LIMIT_SECONDS
        meeting = Meeting(placement.devices, limit)

        def of_all(by_device: Sequence[Sequence[Any]]) -> list[list[Any]]:
            return dealt.dealt(jax.tree.leaves(function(by_device)))

        def together(device: Any, *mine: Any) -> list[Any]:
            return meeting.call(int(device), tuple(map(np.asarray, mine)), of_all)

        def call(*mine: Any) -> Any:
            return self.call(together, shapes, placement.device(), *mine, places=places)

        structure = jax.tree.structure(shapes)
        specs = jax.tree.unflatten(structure, list(map(spec, gives)))
        return placement.inside(call, given.placement.divisions, specs)(*args)
