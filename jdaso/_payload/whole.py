"""Shards as whole leaves: the form in which an outer optimizer receives them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._jax.types import Leaves
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

    def cut(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """All shards of whole leaves; traceable by JAX, and also for NumPy arrays."""
        found = []
        for leaf, x in zip(self.leaves, leaves, strict=True):
            parts = range(leaf.shards) if leaf.division else (0,)
            found += [x[(*part_of(leaf, number), ...)] for number in parts]
        return tuple(found)

    def put_together(self, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Whole leaves from all shards, with NumPy."""
        pieces, found = iter(shards), []
        for leaf in self.leaves:
            mine = [next(pieces) for _ in range(leaf.shards)]
            whole = np.zeros(Leaf(leaf.path, leaf.whole, leaf.dtype).reals, mine[0].dtype)
            for number, shard in enumerate(mine):
                whole[(*part_of(leaf, number), ...)] = shard
            found.append(whole)
        return found


def part_of(leaf: Leaf, number: int) -> tuple[slice, ...]:
    """The part of a whole leaf that a shard covers."""
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
    """Sizes of the grid of shards, and the order of axes that puts the shards side by side."""
    sizes = [size for axes in leaf.division for _, size in axes]
    order, at = [], 0
    for dim, axes in enumerate(leaf.division):
        order += [*range(at, at + len(axes)), len(sizes) + dim]
        at += len(axes)
    return sizes, [*order, *range(len(order), len(sizes) + len(leaf.reals))]
