"""Shards: the parts of leaves that lie on the devices of a node, and are exchanged in place.

No device ever holds more of a leaf than its shard: the host takes each shard from a device that
has it, and exchanges it with the same shard of the other nodes.

In a node of several ranks, devices that hold copies of a shard share the work: each of c copies
gives its host one of c parts, so that no rank sends what another does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.types import PyTree
from .layout import Division, Leaf
from .placement import Placement
from .trees import travels


@dataclasses.dataclass(frozen=True)
class Shards:
    """The different shards of some leaves: the device that gives each, and those that receive it.

    Attributes:
        placement: of these leaves.
    """

    placement: Placement

    @cached_property
    def counts(self) -> list[int]:
        """The number of different shards of each leaf that this rank's devices have."""
        return [len(set(row)) for row in self._numbers]

    @cached_property
    def first(self) -> list[int]:
        """The place of each leaf's first shard among all."""
        return [sum(self.counts[:k]) for k in range(len(self.counts))]

    @cached_property
    def _places(self) -> list[list[int]]:
        """The place of each device's shard among those that are here, for each leaf."""
        order = [{number: k for k, number in enumerate(sorted(set(row)))} for row in self._numbers]
        return [[places[x] for x in row] for places, row in zip(order, self._numbers, strict=True)]

    @cached_property
    def _sources(self) -> list[tuple[int, int]]:
        """Each shard's leaf, by number, and the place of the first device that has the shard."""
        numbered = enumerate(zip(self._places, self.counts, strict=True))
        return [(k, row.index(place)) for k, (row, count) in numbered for place in range(count)]

    @cached_property
    def _numbers(self) -> list[list[int]]:
        """The number of each device's shard, for each leaf."""
        place = self.placement
        return [[place.shard(x, d) for d in place.here] for x in place.divisions]

    def leaves(self, leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """The leaves with each shard of a divided one as a leaf of its own.

        Args:
            leaves: those of the placement.
        """
        found: list[Leaf] = []
        for leaf, row in zip(leaves, self._numbers, strict=True):
            if not leaf.division:
                found.append(leaf)
                continue
            for number in sorted(set(row)):
                path = f"{leaf.path} (shard {number} of {leaf.shards})"
                found.append(Leaf(path, leaf.shape, leaf.dtype))
        return tuple(found)

    def gathered(self, by_device: Sequence[Sequence[Any]]) -> list[Any]:
        """Returns all shards, leaf by leaf, given each device's shards."""
        return [by_device[device][k] for k, device in self._sources]

    def alike(self, by_device: Sequence[Sequence[Any]]) -> list[bool]:
        """Returns for each leaf whether devices with the same shard of it have the same bits."""
        of_first = {}
        found = [True] * len(self._numbers)
        for device, mine in enumerate(by_device):
            for k, (x, row) in enumerate(zip(mine, self._numbers, strict=True)):
                first = of_first.setdefault((k, row[device]), x)
                found[k] &= first is x or _same_bits(np.asarray(first), np.asarray(x))
        return found

    def dealt(self, shards: Sequence[Any]) -> list[list[Any]]:
        """Returns each device's shards, given all of them."""
        pairs = list(zip(self.first, self._places, strict=True))
        devices = range(len(self.placement.here))
        return [[shards[first + row[d]] for first, row in pairs] for d in devices]


def _same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    first, second = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (x, y))
    return np.array_equal(first, second)


@dataclasses.dataclass(frozen=True)
class Part:
    """One of c equal parts of a shard that c devices hold copies of; the last may end with zeros.

    Attributes:
        leaf: the leaf; a divided one has the shape of a shard.
        axes: the axes along which the devices hold copies.
    """

    leaf: Leaf
    axes: tuple[tuple[str, int], ...]

    @property
    def division(self) -> Division:
        """The leaf's division, followed by that into parts."""
        return (*self.leaf.division, self.axes)

    @property
    def parts(self) -> int:
        """The number of parts, c."""
        return math.prod(size for _, size in self.axes)

    @property
    def length(self) -> int:
        """The number of real numbers in a part."""
        return -(-self.leaf.size // self.parts)

    @property
    def exchanged(self) -> Leaf:
        """The part as a leaf."""
        dtype = "float32" if "complex" in self.leaf.dtype else self.leaf.dtype
        return Leaf(self.leaf.path, (self.length,), dtype, self.division)

    def cut(self, x: jax.Array) -> jax.Array:
        """This device's part of a shard, in the shard's dtype; the part's axes must be bound."""
        if jnp.iscomplexobj(x):
            x = jnp.stack([x.real, x.imag], axis=-1)
        flat = x.reshape(-1)
        if self.parts == 1:
            return flat
        flat = jnp.pad(flat, (0, self.length * self.parts - flat.size))
        parts = flat.reshape(self.parts, self.length)  # no index exceeds 2^31 - 1
        return jax.lax.dynamic_index_in_dim(parts, jax.lax.axis_index(self._names), keepdims=False)

    def join(self, part: jax.Array) -> jax.Array:
        """The shard, float32, from the parts of all devices that hold it."""
        flat = jax.lax.all_gather(part, self._names, tiled=True) if self.parts > 1 else part
        return flat[: math.prod(self.leaf.reals)].reshape(self.leaf.reals)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)


def parts_of(placement: Placement, leaves: Sequence[Leaf]) -> tuple[Part, ...]:
    """The parts of the leaves of a placement."""
    return tuple(Part(leaf, placement.copies(leaf.division)) for leaf in leaves)


def in_order(tree: PyTree, divisions: Sequence[Division]) -> list[Division]:
    """The divisions of the arrays that `trees.to_arrays` returns for a tree."""
    if not divisions:
        return []
    found = [(x, y) for x, y in zip(jax.tree.leaves(tree), divisions, strict=True) if np.size(x)]
    return [y for x, y in sorted(found, key=lambda pair: not travels(pair[0]))]
