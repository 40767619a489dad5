"""Copies that devices of several ranks hold: each device's part of the exchange, and the way back.

w on device 0 | device 1 | device 2 | device 3     copies, rank 0 drives 0 and 1
w[0:4]        w[4:8]     w[8:12]    w[12:16]     exchanged by their hosts
w             w          w          w            put together by an all-gather
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._payload.checksums import checksum
from .._payload.layout import Division
from .._payload.placement import Placement
from .._payload.shards import Part, Shards
from .._payload.words import STATUS


@dataclasses.dataclass(frozen=True)
class SharedCopies:
    """The parts of one exchange's leaves; does nothing without parts.

    Attributes:
        placement: of the leaves.
        parts: of each leaf; empty in a node of one rank, where devices exchange their shards.
        compares: whether devices compare the copies that they hold.
    """

    placement: Placement
    parts: tuple[Part, ...]
    compares: bool

    def taken(self, given: Sequence[Division], first: int) -> Shards:
        """The shards or parts of a call's arguments, of which those from `first` on are leaves."""
        if self.parts:
            turns = zip(given[first:], itertools.cycle(self.parts), strict=False)
            given = [*given[:first], *(part.division for _, part in turns)]
        return Shards(self.placement.of(given))

    def cut(self, first: int) -> Callable[..., Sequence[Any]]:
        """A function of a device's arguments that gives its parts of the leaves among them.

        If devices compare their copies, `flags` follow.
        """

        def cut(*mine: Any) -> Sequence[Any]:
            pairs = zip(mine[first:], itertools.cycle(self.parts), strict=False)
            leaves = mine[first : first + len(self.parts)]
            flags = [self.flags(leaves)] if self.compares else []
            return *mine[:first], *(part.cut(x) for x, part in pairs), *flags

        return cut if self.parts else lambda *mine: mine

    def flags(self, leaves: Sequence[Any]) -> jax.Array:
        """Flags by leaf: 1 if devices hold different copies of it, else 0; the same on all."""
        found = jnp.zeros(len(self.parts), jnp.int32)
        if not leaves:
            return found
        bits = jnp.stack([_bits(x) for x in leaves])
        # In the order of the leaves: all ranks compile one program.
        for axes in dict.fromkeys(part.axes for part in self.parts if part.axes):
            names = tuple(name for name, _ in axes)
            apart = jax.lax.pmin(bits, names) != jax.lax.pmax(bits, names)
            mine = jnp.asarray([part.axes == axes for part in self.parts])
            found |= (apart & mine).astype(jnp.int32)
        return jax.lax.pmax(found, self.placement.names)

    def join(self, found: Any) -> Any:
        """Headers and a device's shards, from headers and the parts that it was given.

        The status is the worst of all ranks.
        """
        if not self.parts:
            return found
        words, *sets = found
        each = [
            tuple(part.join(x) for part, x in zip(self.parts, mine, strict=True)) for mine in sets
        ]
        # A number of each leaf goes with the status. Without these numbers a device could be in the
        # next call to the host, which needs the status alone, and wait there for another device,
        # which waits in an all-gather for the first: XLA may reorder independent calls.
        firsts = [_first_number(x) for leaves in each for x in leaves if x.size]
        status = words[:, STATUS]
        last = jax.lax.pmax(jnp.concatenate([status, *firsts]), self.placement.names)
        return words.at[:, STATUS].set(last[: len(status)]), *each


def _first_number(x: jax.Array) -> jax.Array:
    """The bits of the first number of a float32 array."""
    return jax.lax.bitcast_convert_type(x.reshape(-1)[:1].astype(jnp.float32), jnp.int32)


def _bits(x: jax.Array) -> jax.Array:
    """An int32 that two arrays share only by chance, unless they are equal in float32."""
    reals = jnp.stack([x.real, x.imag]) if jnp.iscomplexobj(x) else x
    return checksum((reals.astype(jnp.float32),))
