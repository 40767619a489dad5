"""Which parts of the parameters each rank of a pipeline holds."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ..._types import PyTree
from .program import Rows
from .stage import Stage


@dataclasses.dataclass(frozen=True)
class Unit:
    """Rows of a leaf that the same stages use: the smallest thing that is held.

    Attributes:
        leaf: which one.
        begin: its first row.
        end: the row after its last.
        users: the stages that use it, in rising order; the first one's rank holds it, the others
            are sent it at every step.
    """

    leaf: int
    begin: int
    end: int
    users: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Holding:
    """Who holds what.

    A rank's own tree of parameters is like the whole one, but of each leaf it has only the rows
    that it holds. Leaves without axes have one of length 1 there.

    Attributes:
        tree: of the parameters.
        scalars: leaves without axes.
        shapes: of the whole leaves.
        dtypes: of the leaves.
        units: all of them, by leaf and row.
        ranks: how many; stage s is rank ``s % ranks``'s.
    """

    tree: Any
    scalars: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    units: tuple[Unit, ...]
    ranks: int

    @classmethod
    def of(cls, params: PyTree, stages: Sequence[Stage], ranks: int) -> Holding:
        """Finds the units that stages use; what none uses is the first one's."""
        leaves, tree = jax.tree.flatten(params)
        users: dict[int, dict[tuple[int, int], set[int]]] = defaultdict(lambda: defaultdict(set))
        for stage in stages:
            for piece in stage.pieces.values():
                end = _rows(leaves[piece.leaf].shape) if piece.end is None else piece.end
                users[piece.leaf][piece.begin, end].add(stage.number)
        units: list[Unit] = []
        for leaf, array in enumerate(leaves):
            edges = {0, _rows(array.shape)}.union(*users[leaf])
            found: list[Unit] = []
            for begin, end in _pairs(sorted(edges)):
                spans = users[leaf].items()
                here = {s for (first, last), of in spans if first <= begin < last for s in of}
                unit = Unit(leaf, begin, end, tuple(sorted(here)) or (0,))
                if found and found[-1].users == unit.users:
                    unit = dataclasses.replace(unit, begin=found.pop().begin)
                found.append(unit)
            everyone = {s for of in users[leaf].values() for s in of}
            units += found or [Unit(leaf, 0, 0, tuple(sorted(everyone)) or (0,))]  # it has no rows
        scalars = tuple(k for k, leaf in enumerate(leaves) if not leaf.shape)
        shapes = tuple(tuple(leaf.shape) or (1,) for leaf in leaves)
        dtypes = tuple(np.dtype(leaf.dtype) for leaf in leaves)
        return cls(tree, scalars, shapes, dtypes, tuple(units), ranks)

    @cached_property
    def _of_leaf(self) -> list[list[int]]:
        """Numbers of the units of each leaf, in the order of their rows."""
        found: list[list[int]] = [[] for _ in self.shapes]
        for k, unit in enumerate(self.units):
            found[unit.leaf].append(k)
        return found

    @cached_property
    def _of_rank(self) -> list[tuple[list[int], list[int]]]:
        """Numbers of the units that each rank holds, and of those that it uses or holds."""
        found: list[tuple[list[int], list[int]]] = [([], []) for _ in range(self.ranks)]
        for k, unit in enumerate(self.units):
            found[self.owner(unit)][0].append(k)
            for rank in (self.owner(unit), *self.borrowers(unit)):
                found[rank][1].append(k)
        return found

    def owner(self, unit: Unit) -> int:
        """The rank that holds a unit."""
        return unit.users[0] % self.ranks

    def spans(self, piece: Rows, available: Collection[int]) -> list[tuple[int, slice, slice]]:
        """Of which units a piece is made, in the order of its rows.

        Args:
            piece: of a leaf.
            available: numbers of the units to look among.

        Returns:
            Of each unit its number, its rows that are the piece's, and which of the piece's.
        """
        found = []
        for k in self._of_leaf[piece.leaf]:
            unit = self.units[k]
            last = self.shapes[piece.leaf][0] if piece.end is None else piece.end
            begin, end = max(unit.begin, piece.begin), min(unit.end, last)
            if k in available and (begin < end or unit.begin == unit.end):
                inside = slice(begin - unit.begin, end - unit.begin)
                found.append((k, inside, slice(begin - piece.begin, end - piece.begin)))
        return found

    def whole(self, units: Mapping[int, Any]) -> PyTree:
        """The whole tree from all units, as NumPy arrays."""
        leaves = []
        for leaf in range(len(self.shapes)):
            mine = [units[k] for k in self._of_leaf[leaf]]
            array = mine[0] if len(mine) == 1 else np.concatenate(mine)
            leaves.append(array.reshape(()) if leaf in self.scalars else array)
        return jax.tree.unflatten(self.tree, leaves)

    def stage_of_row(self, leaf: int, row: int) -> int:
        """The first stage that uses a row of a leaf."""
        units = (self.units[k] for k in self._of_leaf[leaf])
        return next((u.users[0] for u in units if u.begin <= row < u.end), 0)

    def lent_to(self, stages: Sequence[Stage]) -> Holding:
        """The same units, held by the same ranks, for other stages to use."""
        units = []
        for unit in self.units:
            users = {
                stage.number
                for stage in stages
                for piece in stage.pieces.values()
                if piece.leaf == unit.leaf
                and (piece.begin < unit.end or unit.begin == unit.end)
                and (piece.end is None or unit.begin < piece.end)
            }
            first = unit.users[0]
            units.append(dataclasses.replace(unit, users=(first, *sorted(users - {first}))))
        return dataclasses.replace(self, units=tuple(units))

    def owners(self, leaf: int) -> list[int]:
        """The ranks that hold rows of a leaf."""
        return sorted({self.owner(self.units[k]) for k in self._of_leaf[leaf]})

    def rows_held(self, leaf: int, rank: int) -> int:
        """How many rows of a leaf a rank holds."""
        units = (self.units[k] for k in self._of_leaf[leaf])
        return sum(unit.end - unit.begin for unit in units if self.owner(unit) == rank)

    def borrowers(self, unit: Unit) -> list[int]:
        """Other ranks that use it."""
        return sorted({stage % self.ranks for stage in unit.users} - {self.owner(unit)})

    def used_by(self, rank: int) -> list[int]:
        """Numbers of the units that a rank's stages use, or that it holds."""
        return self._of_rank[rank][1]

    def owned_by(self, rank: int) -> list[int]:
        """Numbers of the units that a rank holds."""
        return self._of_rank[rank][0]

    def unit_shape(self, unit: Unit) -> tuple[int, ...]:
        """The shape of its array."""
        return (unit.end - unit.begin, *self.shapes[unit.leaf][1:])

    def take(self, leaves: Sequence[Any], unit: Unit) -> Any:
        """A unit's rows of the whole leaves."""
        return leaves[unit.leaf].reshape(self.shapes[unit.leaf])[unit.begin : unit.end]

    def own(self, leaves: Sequence[Any], rank: int) -> PyTree:
        """A rank's own tree, from the whole leaves."""
        units = {k: self.take(leaves, self.units[k]) for k in self.owned_by(rank)}
        return self.join(units, rank, np)

    def whole_structs(self) -> PyTree:
        """Shapes and dtypes of the whole tree."""
        leaves = [
            jax.ShapeDtypeStruct(() if k in self.scalars else shape, dtype)
            for k, (shape, dtype) in enumerate(zip(self.shapes, self.dtypes, strict=True))
        ]
        return jax.tree.unflatten(self.tree, leaves)

    def join(self, units: Mapping[int, Any], rank: int, xp: Any) -> PyTree:
        """A rank's own tree, from the units that it holds; `xp` is NumPy or jax.numpy."""
        out = []
        for leaf, shape in enumerate(self.shapes):
            mine = [k for k in self._of_leaf[leaf] if self.owner(self.units[k]) == rank]
            if not mine:
                out.append(np.zeros((0, *shape[1:]), self.dtypes[leaf]))
            elif len(mine) == 1:
                out.append(xp.asarray(units[mine[0]]))
            else:
                out.append(xp.concatenate([units[k] for k in mine]))
        return jax.tree.unflatten(self.tree, out)

    def split(self, tree: PyTree, rank: int) -> dict[int, Any]:
        """The units that a rank holds, from its own tree."""
        leaves, units, at = jax.tree.leaves(tree), {}, defaultdict(int)
        for k in self.owned_by(rank):
            unit = self.units[k]
            leaf, begin = leaves[unit.leaf], at[unit.leaf]
            whole = unit.end - unit.begin == leaf.shape[0]
            at[unit.leaf] += unit.end - unit.begin
            units[k] = leaf if whole else leaf[begin : begin + unit.end - unit.begin]
        return units


def _rows(shape: Sequence[int]) -> int:
    return shape[0] if len(shape) else 1


def _pairs(edges: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(edges, edges[1:], strict=False))
