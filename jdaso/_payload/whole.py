"""Shards as whole leaves: the form in which numbers are saved, and given to an outer optimizer.

So a run that was saved with its parameters divided one way goes on with them divided another way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._types import Leaves
from .layout import Layout, Leaf


@dataclasses.dataclass(frozen=True)
class Whole:
    """The two forms of the vector of some leaves.

    Attributes:
        shards: the layout of all shards.
        leaves: the leaves, with their divisions.
    """

    shards: Layout
    leaves: tuple[Leaf, ...]

    @cached_property
    def layout(self) -> Layout:
        """The layout of the whole leaves."""
        whole = (Leaf(leaf.path, leaf.whole, leaf.dtype) for leaf in self.leaves)
        return dataclasses.replace(self.shards, leaves=tuple(whole))

    def joined(self, vector: np.ndarray) -> np.ndarray:
        """Shards as whole leaves."""
        found = np.zeros(self.layout.size, vector.dtype)
        for shard, part in self._pairs(vector, found):
            part[...] = shard
        return found

    def divided(self, vector: np.ndarray) -> np.ndarray:
        """Whole leaves as shards."""
        found = np.zeros(self.shards.size, vector.dtype)
        for shard, part in self._pairs(found, vector):
            shard[...] = part
        return found

    def assemble(self, shards: Sequence[Any]) -> Leaves:
        """Whole leaves, float32, from all shards; traceable by JAX."""
        pieces, found = iter(shards), []
        for leaf in self.leaves:
            mine = [next(pieces) for _ in range(leaf.shards)]
            if not leaf.division:
                found.append(mine[0])
                continue
            sizes, order = _grid(leaf)
            grid = jnp.stack(mine).reshape(*sizes, *leaf.reals)
            whole = Leaf(leaf.path, leaf.whole, leaf.dtype)
            found.append(grid.transpose(order).reshape(whole.reals))
        return tuple(found)

    def cut(self, leaves: Sequence[Any]) -> Leaves:
        """All shards of whole leaves, float32; traceable by JAX."""
        found = []
        for leaf, x in zip(self.leaves, leaves, strict=True):
            parts = range(leaf.shards) if leaf.division else (0,)
            found += [x[(*part_of(leaf, number), ...)] for number in parts]
        return tuple(found)

    def _pairs(
        self, shards: np.ndarray, whole: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Each shard in the one vector, and its part of a leaf in the other."""
        pieces = iter(_views(self.shards, shards))
        for leaf, view in zip(self.leaves, _views(self.layout, whole), strict=True):
            for number in range(leaf.shards):
                yield next(pieces), view[(*part_of(leaf, number), ...)]


def part_of(leaf: Leaf, number: int) -> tuple[slice, ...]:
    """The part of a whole leaf that a shard is."""
    sizes = [size for axes in leaf.division for _, size in axes]
    places = iter(np.unravel_index(number, sizes) if sizes else ())
    found = []
    for length, axes in zip(leaf.shape, leaf.division, strict=False):
        at = 0
        for _, size in axes:
            at = at * size + int(next(places))
        found.append(slice(at * length, (at + 1) * length))
    return tuple(found)


def _grid(leaf: Leaf) -> tuple[list[int], list[int]]:
    """Sizes of the grid of shards, and the order of its axes with which they lie side by side."""
    sizes = [size for axes in leaf.division for _, size in axes]
    order, at = [], 0
    for dim, axes in enumerate(leaf.division):
        order += [*range(at, at + len(axes)), len(sizes) + dim]
        at += len(axes)
    return sizes, [*order, *range(len(order), len(sizes) + len(leaf.reals))]


def _views(layout: Layout, vector: np.ndarray) -> Sequence[np.ndarray]:
    """The leaves in a vector."""
    pairs = zip(layout.exchanged, layout.offsets, strict=False)
    return [vector[at : at + math.prod(leaf.reals)].reshape(leaf.reals) for leaf, at in pairs]
