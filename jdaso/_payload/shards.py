"""Shards: the parts of leaves that lie on the devices of a node, and are exchanged as they lie.

No device ever holds more of a leaf than its shard: the host takes each shard from a device that
has it, and exchanges it with the same shard of the other nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from .._types import PyTree
from .layout import Division, Leaf
from .placement import Placement
from .trees import travels


@dataclasses.dataclass(frozen=True)
class Shards:
    """The different shards of some leaves: which device gives which, and which it is given.

    Attributes:
        placement: of these leaves.
    """

    placement: Placement

    @cached_property
    def counts(self) -> list[int]:
        """The number of different shards of each leaf."""
        return [max(row) + 1 for row in self._numbers]

    @cached_property
    def first(self) -> list[int]:
        """The place of each leaf's first shard among all."""
        return [sum(self.counts[:k]) for k in range(len(self.counts))]

    @cached_property
    def _sources(self) -> list[tuple[int, int]]:
        """For each shard: its leaf's number, and the first device that has it."""
        numbered = enumerate(zip(self._numbers, self.counts, strict=True))
        return [(k, row.index(number)) for k, (row, count) in numbered for number in range(count)]

    @cached_property
    def _numbers(self) -> list[list[int]]:
        """For each leaf, the number of each device's shard."""
        place = self.placement
        return [[place.shard(x, d) for d in range(place.devices)] for x in place.divisions]

    def gathered(self, by_device: Sequence[Sequence[Any]]) -> list[Any]:
        """All shards, leaf by leaf, given what each device has of the leaves."""
        return [by_device[device][k] for k, device in self._sources]

    def alike(self, by_device: Sequence[Sequence[Any]]) -> list[bool]:
        """For each leaf, whether all devices that have the same shard of it have the same bits."""
        of_first = {}
        found = [True] * len(self._numbers)
        for device, mine in enumerate(by_device):
            for k, (x, row) in enumerate(zip(mine, self._numbers, strict=True)):
                first = of_first.setdefault((k, row[device]), x)
                found[k] &= first is x or _same_bits(np.asarray(first), np.asarray(x))
        return found

    def dealt(self, shards: Sequence[Any]) -> list[list[Any]]:
        """For each device what it has of the leaves, given all shards."""
        pairs = list(zip(self.first, self._numbers, strict=True))
        devices = range(self.placement.devices)
        return [[shards[first + row[d]] for first, row in pairs] for d in devices]


def _same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    first, second = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (x, y))
    return np.array_equal(first, second)


def expanded(leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Leaves with each shard of a divided one as a leaf of its own."""
    found: list[Leaf] = []
    for leaf in leaves:
        if not leaf.division:
            found.append(leaf)
            continue
        for number in range(leaf.shards):
            path = f"{leaf.path} (shard {number} of {leaf.shards})"
            found.append(Leaf(path, leaf.shape, leaf.dtype))
    return tuple(found)


def in_order(tree: PyTree, divisions: Sequence[Division]) -> list[Division]:
    """The divisions of the arrays that `trees.to_arrays` gives of a tree."""
    if not divisions:
        return []
    found = [(x, y) for x, y in zip(jax.tree.leaves(tree), divisions, strict=True) if np.size(x)]
    return [y for x, y in sorted(found, key=lambda pair: not travels(pair[0]))]
